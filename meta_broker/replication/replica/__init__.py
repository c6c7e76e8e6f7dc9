"""The slave's end: its link, its copy and its state.

Read: handshake (pure), slave_file, copy_report -> receiver (the link), state (what is shown) -> resync.
"""
