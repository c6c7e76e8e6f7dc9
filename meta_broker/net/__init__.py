"""The listening socket, its connections, and the limits of both.

Read: budget (bytes of all connections), busy_poll, reply_queue, connection_state, throttle (quotas), identified ->
connection_limit, connection_owner -> connection -> listening -> server.
"""
