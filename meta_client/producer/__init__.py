"""Sending messages: one at a time, in batches, in local transactions, in XA branches.

Read: results, partitioners, outgoing -> single_sends; batch, partition_queues (pure: order and retries of batches),
attempts -> sender (the thread); transaction_owner, local_transaction; xa_verbs, branch_batch, branch_pipeline, xa ->
producer (for users).
"""
