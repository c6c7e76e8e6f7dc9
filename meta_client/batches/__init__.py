"""Micro-batches of Spark's sink as transactions: their names, their decision in ZooKeeper, and its end.

Read: names, decision, finishing (ends batches whose driver is gone). The driver's own part is spark_jobs/sink/.
"""
