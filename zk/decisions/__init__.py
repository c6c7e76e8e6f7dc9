"""Facts about decisions that ZooKeeper keeps: generations of decision tables, and what Spark's sinks have decided."""
