"""ZooKeeper as MetaQ uses it (spec 6 and 9), and an embedded server for machines that have none.

Read: errors, nodes, paths (pure: what the tree holds) -> session (the connection) -> ephemerals,
registration (a broker's side) -> java, embedded_config, embedded, corner (a server to talk to)."""
