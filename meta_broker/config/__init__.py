"""The configuration file and its validation.

Read: schedule, broker_section, zookeeper_section,
retention_section, slave_section, replication_section, admin_section, tls_section, access_section,
broker_config (the value) -> exposure -> loading.
"""
