"""ZooKeeper as MetaQ uses it (spec 6 and 9), and an embedded server for machines that have none.

Read: java, embedded_config, embedded, corner (a server to talk to)."""
