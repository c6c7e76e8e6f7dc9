"""Dead-letter store: keeps messages that a consumer's listeners reject, and redelivers them.

Read: index (pure: state of the store from its records) -> store (its own journal) -> redelivery (the thread that
redelivers), queue (both, for a consumer's life), reading (from outside).
"""
