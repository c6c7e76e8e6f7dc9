"""The configuration file and its validation.

Read: topic_names, schedule, slave_section, replication_section -> broker_config.
"""
