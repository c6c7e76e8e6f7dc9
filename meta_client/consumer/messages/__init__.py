"""Messages as a consumer receives them, and the batches of one fetch of one partition. Pure.

Read: received_message, alike_run, batch_columns -> batch.
"""
