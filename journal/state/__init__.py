"""State of a journal: fold, checkpoints, recovery, truncation and the transaction store."""
