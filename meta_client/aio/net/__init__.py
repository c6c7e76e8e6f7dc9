"""Connections of tasks to brokers, and a view of the brokers.

Read: connection -> connections, topology; workers.
"""
