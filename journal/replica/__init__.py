"""A slave's copy of its master's journal."""
