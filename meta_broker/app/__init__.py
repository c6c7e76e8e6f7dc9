"""A process from its start to its end: master, slave, roles and the watchdog.

Read: watchdog -> broker (the order of starting and stopping) -> master, slave -> roles.
"""
