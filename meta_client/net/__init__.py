"""Connections to brokers: sockets, requests in flight, replies, back-off and heartbeats."""
