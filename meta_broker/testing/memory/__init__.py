"""A cluster inside this process: real clients and brokers, over a simulated disk and a simulated ZooKeeper.

storage (a directory) -> broker; tree, session (ZooKeeper); both -> cluster (for tests).

Not simulated: a power cut, failures of disk and ZooKeeper. Not started: slaves, retention, checkpoints by themselves. A
service's tests of those need a real broker (../plugin.py).
"""
