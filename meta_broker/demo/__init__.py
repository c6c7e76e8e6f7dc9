"""The main job, shown on real input with real kills: an invoice is in the database and on the broker, or in neither.

Everything here is a client of metaq, written as a user would write it; broker and audit run as programs. Read: orders,
generator, messages, schema, verdict (pure) -> traps, talk, child -> producers, consumers (two processes that do the
job) -> talker, stage (all processes) -> kills (the three kills) -> reader, show (the run, the evidence) -> report, cli.
"""
