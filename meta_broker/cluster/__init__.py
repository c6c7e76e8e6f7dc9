"""The broker in ZooKeeper: sessions, registration and the topics it announces.

Read: registration_plan (pure), former_session, cluster_identity -> membership -> registration_task, topic_announcer.
"""
