"""Sending from tasks: the sending engine with a driver for asyncio.

Read: sender -> producer (for users).
"""
