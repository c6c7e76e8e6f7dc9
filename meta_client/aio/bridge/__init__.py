"""Runs what is written for threads in tasks, and their database connections below it.

Read: bridge -> psycopg_adapter, asyncpg_adapter.
"""
