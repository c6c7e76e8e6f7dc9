"""The checks over those records, and their report."""
