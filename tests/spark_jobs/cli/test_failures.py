"""A Spark that does not start, as the user of every command on Spark meets it: one last line, and exit code 2."""

from pathlib import Path

import pytest

from spark_jobs.source.failures import telling_line
from tests.fixtures.forked import run_metaq

NOWHERE = ("--database", "postgresql://nobody@127.0.0.1:1/none")
# Java packages are looked for in an empty folder, not in the Internet.
EMPTY = """<ivysettings><settings defaultResolver="none"/><resolvers>
<filesystem name="none"><artifact pattern="{folder}/[artifact].jar"/></filesystem></resolvers></ivysettings>"""


@pytest.mark.servers  # a JVM, until it fails
@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["audit", "{journal}"], ["--conf", "spark.driver.memory=much"]),
        (["certify", *NOWHERE, "--since", "2026-01-01", "--dir", "{journal}"], ["--packages", "no.such:package:1"]),
        (["reconcile", *NOWHERE, "--dir", "{journal}"], ["--conf", "spark.driver.memory=much"]),
    ],
)
def test_a_spark_that_does_not_start_is_one_line(
    honest: Path, tmp_path: Path, words: list[str], wrong: list[str]
) -> None:
    """In a process of its own: this one may have its Spark already."""
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(EMPTY.format(folder=tmp_path))
    command = [word.format(journal=honest) for word in words] + wrong
    command += ["--conf", f"spark.jars.ivySettings={settings}", "--conf", f"spark.jars.ivy={tmp_path}/ivy"]
    done = run_metaq(*command, timeout_s=300)
    assert done.returncode == 2, done.stderr
    assert "Traceback (most recent call last)" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: Spark at local[*] did not start: [JAVA_GATEWAY_EXITED] "), done.stderr
    assert last.endswith("its messages above say why: check --master, --packages and --conf")
    assert wrong[1].partition("=")[2] in done.stderr, "Spark's own message"


def test_a_stack_trace_becomes_its_one_telling_line() -> None:
    java = (
        "An error occurred while calling o42.collect.\n: java.lang.Exception: Job aborted\n\tat o.a.Foo(Foo.scala:1)\n"
        "Caused by: java.io.IOException: No space left on device\n\t... 3 more\n"
    )
    assert telling_line(java) == "java.io.IOException: No space left on device"
    python = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File x\n"
        "journal.errors.StorageFailed: d: gone\n SQLSTATE: 38000\n"
    )
    assert telling_line(python) == "journal.errors.StorageFailed: d: gone"
    assert telling_line("An error occurred.\n: java.lang.Exception: why\n\tat x") == "java.lang.Exception: why"
    assert telling_line("[JAVA_GATEWAY_EXITED] Java gateway process exited.") == (
        "[JAVA_GATEWAY_EXITED] Java gateway process exited."
    )
    assert telling_line("") == "no reason given"
