"""Examines a machine and a disk before a broker is put there: disk_test and machine (measurements) -> judging (findings
and expected rates; pure).
"""
