"""Benchmarks through the public client API, each as a ratio to a baseline measured in the same run.

`python -m bench CASE...`; no case lists them. Read: result, baselines (what the machine can do) -> environment (a
broker to measure) -> producing, consuming, latency, memory, flat_costs -> cases -> history. checksums and segments are
about single parts.
"""
