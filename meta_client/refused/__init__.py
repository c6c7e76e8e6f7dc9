"""The local store of refused messages: what a consumer's listener did not take waits here, and is offered again.

Read: waiting (what the records add up to; pure) -> store (a journal of its own) -> redelivery (the thread that offers
them again), parking (both, for a consumer's life), reading (from outside).
"""
