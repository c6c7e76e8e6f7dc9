"""Questions and actions of an operator, for the commands and the console alike: none parses options or draws a page.

Read: text, option_types (words of people) -> placement, positions, progress, waiting, reading, searching (messages),
group_lag, group_ends, group_watch, listed_offsets, reset_options, reset_plan, reset (groups), branches, branch_text
(in doubt), broker_rows, topic_rows.
"""
