"""The master's end: links to its slaves, the in-sync set and the high watermark.

Read: handshake, in_sync_replicas (pure) -> replica_sender (one slave's link) -> master (all of them) -> report.
"""
