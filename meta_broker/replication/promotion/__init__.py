"""Promotion of a slave to master, and demotion of a superseded master to slave.

Read: promotion_check (pure), candidates (pure) -> promotion -> demotion.
"""
