"""Copies of a broker's journal: one is written, the others follow, and one of those can take its place.

Read: section, errors, frames (the link's bytes), master_side, slave_side, in_sync (pure) -> lost_tail (what a master
takes back), feeder (one slave's link), master (all of them, and the fence), report -> slave_file (what a slave
remembers of its master), follower_link (the slave's end), copy_report (what it tells of its copy), following (what it
shows), rebuilding (what it cuts) -> judgement (may it take its master's place? pure), other_slaves (or rather another
one? pure), promotion (it does), fencing (its master must stop), rejoining (and follow).
"""
