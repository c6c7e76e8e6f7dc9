"""For the tests of services that use metaq: real brokers as pytest fixtures, and a cluster in memory.

Read: real (a broker process with a part of ZooKeeper to itself) -> plugin (the fixtures; pytest finds them by itself).
memory/ is a cluster without processes or sockets, for unit tests; its docstring says what it leaves out.
"""
