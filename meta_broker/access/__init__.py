"""Access: principals, their rights, and logins. Pure, except for a clock.

Read: addresses, principal, quota -> rules (the file) -> needs (rights of each verb) -> scram -> attempts ->
accounts (use of quotas).
"""
