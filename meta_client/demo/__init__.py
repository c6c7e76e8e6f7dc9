"""The main job, shown on real input with real kills: an invoice is in the database and on the broker, or in neither.

Everything here is a client of metaq, written as a user would write it; broker and audit run as programs of their
own. Read: orders, schema, verdict (pure) -> postgres (a database of its own) -> producers, consumers (two processes
that do the job) -> processes, stage (who starts and kills whom) -> kills (the three kills) -> reader -> cli.
"""
