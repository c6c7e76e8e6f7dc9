"""Test support for services that use metaq: real brokers as pytest fixtures, and a cluster in memory.

Read: postgres, real (a broker process, also with its own chroot of ZooKeeper) -> plugin (the fixtures, found by
pytest). memory/ is a cluster inside the test's process, for unit tests; its docstring lists what it leaves out.
"""
