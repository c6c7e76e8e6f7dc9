"""Benchmarks through the public client API, each as a ratio to a floor measured in the same run.

`python -m bench CASE...`; no case lists them. Read: result, floors (what the machine could do) -> stage (a broker
to measure) -> latency, memory, partitions -> cases -> history. checksums and segments are about single parts.
"""
