"""Sending messages: one at a time, in batches, in local transactions, in XA branches.

Read: results, partitioners, outgoing -> single_sends; batch, attempts, partition_queues, partition_choice, message_run
-> interfaces, gathering, sending_engine (pure: batches, their order and retries) -> driving, sender (the thread);
many_sends; transaction_owner, local_transaction; xa_verbs, branch_batch, branch_pipeline, xa -> producer
(for users).
"""
