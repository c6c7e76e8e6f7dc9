"""ZooKeeper as MetaQ uses it (spec 6 and 9), and an embedded server for machines that have none.

Read: errors, forks -> tree, pure: broker_url, nodes, paths (the tree's layout), transactions, claims (partition
ownership) -> session: lease, lease_keeper, newcomer, multi, session (the only two that use kazoo for nodes),
former_session, ephemerals, watches -> brokers: registration, replication, cluster (the brokers that are up) ->
decisions: generation -> groups: strategy (assignment of partitions), membership, ownership, offsets, listing (for
operators) -> embedded: java, launch, config, server, chroot."""
