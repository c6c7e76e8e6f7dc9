"""Restoring a back-up: skipped_offsets (where partitions go on) and restore_check (findings before it), both pure ->
restoration (the steps, and ZooKeeper).
"""
