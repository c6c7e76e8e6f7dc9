"""The configuration file and its validation.

Read: schedule, broker_section, sections, security_sections, broker_config (the value) -> exposure -> loading.
"""
