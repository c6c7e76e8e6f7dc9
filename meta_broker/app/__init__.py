"""A process from its start to its end: master, slave, roles and the watchdog.

Read: watchdog, in_doubt_at_stop -> broker (the order of starting and stopping) -> master, slave -> roles.
"""
