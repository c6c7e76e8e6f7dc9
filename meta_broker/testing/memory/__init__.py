"""A cluster in memory: the real clients, over simulated brokers and ZooKeeper.

Producers, consumers, groups, transactions and coordinators run their own code. The simulation is small: read tree,
session (ZooKeeper) -> partitions, branches, broker, link (a broker) -> cluster (for tests).

Not simulated: durability (a restart is a cluster that was never stopped), ZooKeeper's failures, slaves, filters,
retention, compression rules, `find` and the operator's verbs. Tests of those need a real broker (../plugin.py). The
same tests hold both to the same answers: tests/meta_broker/testing/test_same_as_real.py.
"""
