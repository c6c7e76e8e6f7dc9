"""A broker under a mixed load for twenty minutes: does anything grow, is anything lost?

Read: load (who does what, at which rate) -> watch (what is measured each second) -> verdict (pure: what must hold)
-> plot -> __main__.
"""
