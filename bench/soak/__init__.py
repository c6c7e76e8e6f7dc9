"""Runs a broker under a mixed load for twenty minutes, and checks that nothing grows and nothing is lost.

Read: load (operations and their rates) -> watch (samples, each second) -> verdict (pure: the conditions to meet) ->
plot -> __main__.
"""
