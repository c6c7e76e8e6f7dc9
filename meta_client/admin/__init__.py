"""The admin port of a process: metrics for Prometheus, and health. Read-only, on threads of its own.

Read: families (metrics as tables) -> log_samples -> health -> host (which may ask) -> endpoint (paths) -> server
(HTTP) -> serving (of a client's process).
"""
