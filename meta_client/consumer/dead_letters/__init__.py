"""Dead-letter store: keeps messages that a consumer's listeners reject.

Read: index (pure: state of the store from its records) -> store (its own journal) -> reading (from outside). The
consumer's dead_letter_queue and redelivery use it.
"""
