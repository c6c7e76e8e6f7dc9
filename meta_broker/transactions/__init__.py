"""Branches as connections see them: who holds a local transaction, when an active one expires."""
