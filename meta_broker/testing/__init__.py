"""Test support for services that use metaq: real brokers as pytest fixtures, and a cluster in memory.

Read: processes, postgres (programs that die with their parent) -> real (a broker process with its own chroot of
ZooKeeper) -> plugin (the fixtures, found by pytest). memory/ is a cluster inside the test's process, for unit tests;
its docstring lists what it leaves out.
"""
