"""The slave's end: its link, its copy and its state.

Read: replica_state, effects, replica (pure) -> slave_file, copy_report, link, receiver (carries the effects out) ->
resync.
"""
