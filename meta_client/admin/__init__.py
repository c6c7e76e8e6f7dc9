"""The admin port of a process: metrics for Prometheus, and health. Read-only, on threads of its own.

Read: families (metrics as tables) -> health -> endpoint (paths) -> server (HTTP).
"""
