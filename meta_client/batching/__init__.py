"""Sending without waiting: messages gathered into batches, batches sent, retried, and told apart from their retries.

Read: batch (a batch and the handles of its messages), lanes (pure: which batch goes out when, and again) -> sender
(the thread).
"""
