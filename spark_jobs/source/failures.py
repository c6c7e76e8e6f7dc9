"""Failures of Spark, each as one line. Stands alone: commands name the class before PySpark is imported."""


class SparkNotStarted(Exception):
    """Spark's Java, or its session, did not start."""


def telling_line(trace: str) -> str:
    """Return the line of a Java or Python stack trace that names the error: the last that is not indented."""
    lines = [line for line in trace.splitlines() if line and not line[0].isspace() and line != "Driver stacktrace:"]
    return (lines[-1] if lines else "no reason given").removeprefix("Caused by: ").removeprefix(": ")[:500]
