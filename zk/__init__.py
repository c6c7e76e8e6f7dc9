"""ZooKeeper as MetaQ uses it (spec 6 and 9), and an embedded server for machines that have none.

Read, pure: errors, nodes, paths (what the tree holds), strategy (who gets which partitions), transactions,
claims (how a partition is owned), lease
-> credentials, link, session (the only file that speaks to kazoo about nodes), former_session, ephemerals, watches
-> registration, replication (a broker's side), cluster (who is there)
-> membership, ownership, offsets (a consumer's side), groups (an operator's)
-> java, embedded_config, embedded, corner (a server to talk to)."""
