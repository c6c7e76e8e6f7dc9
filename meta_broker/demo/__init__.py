"""The main job, shown on real input with real kills: an invoice is in the database and on the broker, or in neither.

Everything here is a client of metaq, written as a user would write it; broker and audit run as programs. Read: orders,
schema, verdict (pure), generator -> producers, consumers -> environment (all processes) -> kills (the three kills) ->
run (the evidence) -> report, cli.
"""
