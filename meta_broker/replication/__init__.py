"""Replication of a broker's journal: a master writes, slaves copy, and a slave can be promoted to master.

Read: errors, fencing, link_protocol (messages and bytes), lost_tail (what a master restores) -> master/ -> replica/ ->
promotion/.
"""
