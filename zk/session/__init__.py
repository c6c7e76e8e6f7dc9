"""One ZooKeeper session: its lease, ephemeral nodes and watches."""
