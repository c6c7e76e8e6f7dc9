"""A ZooKeeper server as a child process, and the Java to run it."""
