"""The broker: one process, one event loop, one journal.

Read: topic_names, slave_section, config, memory, clock, message_ids, raised -> store/ (topics, partition indexes, the
message store over the journal) -> transactions/ (branches per connection, timeouts) -> filters/ (somebody else's code)
-> processors/ (one file a command) -> replication/ (copies of the journal) -> budget (bytes of all connections),
connection_owner, connection, refusal, descriptors, server -> registration_plan, membership (ZooKeeper), watchdog,
joining -> broker, slave (the order of starting and stopping), running -> cli, checkpoint_cli, promote_report,
promote_cli.

Everything runs on the loop thread but the journal's writer, membership, the watchdog, and workers: one for
checkpoints, one that reads what is not in memory, one for searches.
"""
