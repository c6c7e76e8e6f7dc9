"""The main job, shown on real input with real kills: an invoice is in the database and on the broker, or in neither.

Everything here is a client of metaq, written as a user would write it; broker and audit run as programs of their
own. Read: orders, generator, messages, schema, verdict (pure) -> launch, postgres (a database of its own) -> traps,
talk, child -> producers, consumers (two processes that do the job) -> programs, stage (who starts whom) -> kills
(the three kills) -> reader, show (the run, the evidence) -> report, cli.
"""
