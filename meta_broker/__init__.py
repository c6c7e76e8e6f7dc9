"""The broker: one process, one event loop, one journal.

Read: errors, version, fd_limits, task_errors, config/ -> store/ (topics, partition indexes, the message store over the
journal) -> replication/ (copies of the journal) -> filters/ (user code) -> restoring/ (back-ups) -> selftest/ (of a
machine) -> cluster/ (ZooKeeper) -> handlers/ (one file a command) -> net/ (server and connections) -> metrics/ (and
health) -> app/ (the order of starting and stopping) -> cli/.

Everything runs on the loop thread except the journal's writer, membership, the watchdog, the admin port, and workers:
one for checkpoints, one for cold reads, one for searches.
"""
