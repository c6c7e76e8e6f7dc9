"""The entry point: help without imports, errors in one line, exit statuses."""

import json
import platform
import re
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from meta_client.cli.main import SUMMARIES
from tests.fixtures.forked import run_metaq

ROOT = Path(__file__).parents[3]
PRODUCT = ("meta_broker", "meta_client", "journal", "zk", "spark_jobs", "docs")


def metaq(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meta_client.cli.main", *words], input=stdin, capture_output=True, text=True, timeout=300
    )


def test_help_names_every_command_and_imports_none_of_them() -> None:
    script = (
        "import sys; sys.argv = ['metaq', '--help']\n"
        "from meta_client.cli.main import main\n"
        "try: main()\n"
        "finally: print(sorted({'pyspark', 'psycopg', 'uvloop', 'meta_broker', 'spark_jobs'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in SUMMARIES:
        assert re.search(rf"^  {name} +\S", done.stdout, re.MULTILINE), name


def test_every_command_has_a_summary() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["metaq.commands"].keys() == SUMMARIES.keys()
    assert project["scripts"] == {"metaq": "meta_client.cli.main:main"}


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_teaches(name: str) -> None:
    done = metaq(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: metaq {name}")
    assert len(done.stdout.splitlines()) > 5


def test_another_package_adds_commands_and_replaces_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (info := tmp_path / "other-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[metaq.commands]\ngreet = other:greet\nversion = other:greet\n")
    (tmp_path / "other.py").write_text("import click\n@click.command()\ndef greet(): click.echo('good day')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_metaq("greet").stdout == "good day\n"
    assert re.search(r"^  greet$", run_metaq("--help").stdout, re.MULTILINE)
    assert run_metaq("version").stdout.startswith("metaq ")


SWALLOWS = """
import os, signal
import click

@click.command()
@click.argument("number", type=int)
@click.argument("then", type=click.Choice(["ends", "raises", "refuses"]))
def swallow(number, then):
    try:
        os.kill(os.getpid(), number)
    except BaseException:
        pass  # as kazoo does, while it sends
    if then == "raises":
        None.send()
    if then == "refuses":
        raise click.ClickException("no ZooKeeper")
"""


@pytest.mark.parametrize(
    ("number", "then", "status", "error"),
    [
        (signal.SIGINT, "refuses", 130, "error: no ZooKeeper\n"),
        (signal.SIGINT, "raises", 130, ""),
        (signal.SIGTERM, "raises", 143, ""),
        (signal.SIGINT, "ends", 0, ""),  # it was done all the same
    ],
)
def test_an_error_after_a_signal_that_a_library_swallows_is_the_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, then: str, status: int, error: str
) -> None:
    (info := tmp_path / "other-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[metaq.commands]\nswallow = other:swallow\n")
    (tmp_path / "other.py").write_text(SWALLOWS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = metaq("swallow", str(int(number)), then)
    assert (done.returncode, done.stderr) == (status, error)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nope"], "error: No such command 'nope': see `metaq --help`\n"),
        (["broker", "--id", "0"], "error: Missing option '--data': see `metaq broker --help`\n"),
        (["journal", "dump", "/no/such/place"], None),
        (["topics", "--zk", "127.0.0.1:1"], None),
    ],
)
def test_an_error_is_one_line_and_exit_status_2(words: list[str], line: str | None) -> None:
    done = metaq(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")
    assert line is None or done.stderr == line


def test_what_is_advised_to_be_installed_is_ours() -> None:
    """`metaq` on the package index belongs to somebody else: the distribution is metaq-broker."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "metaq-broker"
    assert "metaq" in distribution("metaq-broker").entry_points.select(group="console_scripts").names
    stranger = re.compile(r"\bmetaq\[|\b(?:pip|pipx|uv|poetry)\b.*\b(?:install|add|run)\b.*\bmetaq\b(?!-)")
    texts = [path for name in PRODUCT for path in sorted((ROOT / name).rglob("*")) if path.suffix in {".py", ".md"}]
    assert len(texts) > 300
    for path in [*texts, ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "mkdocs.yml", ROOT / "Makefile"]:
        advised = [line for line in path.read_text().splitlines() if stranger.search(line)]
        assert advised == [], path


def test_version() -> None:
    told = json.loads(metaq("version", "--json").stdout)
    assert metaq("--version").stdout == f"metaq {told['metaq']}, {told['core']}\n"
    assert told["python"].endswith(platform.python_version())
    assert told["kazoo"] is not None
    lines = dict(line.split(maxsplit=1) for line in metaq("version").stdout.splitlines())
    assert lines == {name: value or "not installed" for name, value in told.items()}
    assert re.fullmatch(r"metaq \d+\.\d+\.\d+, (native core|Python alone)\n", metaq("--version").stdout)


def in_shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=300)


PROGRAM = f"{sys.executable} -m meta_client.cli.main"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_the_caller_closed_is_no_error(closed: str) -> None:
    assert (done := in_shell(f"{PROGRAM} version {closed}")).returncode == 0, done.stderr
    assert in_shell(f"{PROGRAM} nope {closed}").returncode == 2


@pytest.mark.parametrize("words", ["--help", "--version", "version"])
def test_output_that_can_not_be_written_is_an_error_of_one_line(words: str) -> None:
    done = in_shell(f"{PROGRAM} {words} >/dev/full")
    assert (done.returncode, done.stderr) == (2, "error: the operating system: No space left on device\n")


@pytest.mark.parametrize(("words", "status"), [("version", 0), ("nope", 2), ("doctor nope", 2), ("--nope", 2)])
def test_the_exit_status_is_the_same_where_errors_can_not_be_written(words: str, status: int) -> None:
    assert in_shell(f"{PROGRAM} {words} 2>/dev/full").returncode == status


def test_what_metaq_did_not_expect_is_no_answer() -> None:
    script = (
        "from meta_client.cli import main\n"
        "main.metaq.callback = lambda: 1 / 0\n"
        "main.metaq.invoke_without_command = True\n"
        "main.metaq.no_args_is_help = False\n"
        "main.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
