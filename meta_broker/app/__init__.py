"""A process from its start to its end: master, slave, roles and the watchdog.

Read: watchdog, in_doubt_at_stop -> broker, slave (the order of starting and stopping) -> roles.
"""
