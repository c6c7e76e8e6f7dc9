"""A cluster in memory: clients that are the real ones, over a ZooKeeper and brokers that are not.

Producers, consumers, groups, transactions and coordinators run their own code. What stands in for the rest is small:
read tree, session (a ZooKeeper) -> partitions, branches, broker, link (a broker) -> cluster (what tests hold).

What it has not: durability (a restart is a cluster that was never stopped), ZooKeeper's failures, slaves, filters,
retention, compression rules, `find` and the operator's verbs. Tests of those take a real broker (../plugin.py). The
same tests hold both to the same answers: tests/meta_client/testing/test_same_as_real.py.
"""
