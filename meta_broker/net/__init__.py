"""The listening socket, its connections, and the limits of both.

Read: budget (bytes of all connections), busy_poll, connection_limit, connection_state, connection_owner -> connection
-> server.
"""
