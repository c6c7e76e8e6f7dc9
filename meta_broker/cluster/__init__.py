"""The broker in ZooKeeper: sessions, registration and the topics it announces.

Read: registration_plan (pure), session_file -> membership -> registration_task, topic_announcer.
"""
