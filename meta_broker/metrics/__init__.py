"""Metrics and health of a broker, on its admin port. Reads numbers on threads of its own, and changes nothing.

Read: families (every metric) -> status (the parts of a running broker, and its health) -> samples ->
admin (registry and server).
"""
