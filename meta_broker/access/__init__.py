"""Access: principals, their rights, logins, and the audit log. Pure, but for a clock and the log.

Read: addresses, principal, quota -> rules (the file) -> needs (rights of each verb) -> scram -> attempts -> audit ->
accounts (use of quotas).
"""
