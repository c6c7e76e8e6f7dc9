"""`metaq demo` as its users run it: a whole run, bad input, and an end from outside."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_broker.demo.generator import write_orders
from tests.fixtures import real_orders

RUN_S_MAX = 500  # it takes half a minute, of which the audit's Spark needs more than its share on a busy machine

COMMAND = [sys.executable, "-c", "from meta_client.cli.main import main; main()", "demo"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Put all temporary files in one directory, which must be empty and unused at the end."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o711)
    yield os.environ | {"TMPDIR": str(temporary)}
    deadline = time.monotonic() + 60
    while found := _processes(temporary):
        assert time.monotonic() < deadline, f"left running: {found}"
        time.sleep(0.05)


def _processes(temporary: Path) -> list[str]:
    """Every process that was started with this TMPDIR, however it is related to us."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if f"TMPDIR={temporary}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # not a process, or gone meanwhile
    return found


def run(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)


def test_a_whole_run_from_files(tmp_path: Path, environment: dict[str, str]) -> None:
    """Two files, the second one a day of real invoices where the machine has some."""
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    write_orders(files[0], 80, seed=1)
    write_orders(files[1], 60, seed=2)
    text = files[1].read_text().replace("\n6000", "\n7000").replace("\nC6000", "\nC7000")
    files[1].write_text(text)
    files[1:] = real_orders.files()[:1] or files[1:]
    done = run(environment, "--seed", "3", "--json", "--orders", *files)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["well"] is True
    assert report["seed"] == 3
    rows = [row for file in files for row in list(csv.reader(file.read_text().splitlines()))[1:]]
    assert report["invoices"] == {"both": len({row[0] for row in rows}), "neither": 0, "mixed": 0}
    assert set(report["lines"].values()) == {len(rows)}
    assert [kill["survived"] for kill in report["kills"]] == [True] * 3
    assert "still prepared on the broker after its restart" in report["kills"][1]["proof"]
    assert "both were prepared on both sides" in report["kills"][2]["proof"]
    assert report["audit"]["holds"] is True
    assert list(Path(environment["TMPDIR"]).glob("metaq-demo-*")) == []


def _broken(tmp_path: Path) -> list[str | Path]:
    path = tmp_path / "broken.csv"
    write_orders(path, 120, seed=1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:121], "1,2,3,many,2010-12-01 08:26:00,2.55,,France\n", *lines[121:]]))
    return ["--orders", path]


def _few(tmp_path: Path) -> list[str | Path]:
    write_orders(tmp_path / "few.csv", 5, seed=1)
    return ["--orders", tmp_path / "few.csv"]


def _full(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    return ["--keep", tmp_path / "full"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (_broken, "broken.csv, line 122: Quantity 'many' is not a whole number"),
        (_few, "three kills need 100 or more"),
        (_full, "is not empty: name a new directory"),
        (lambda tmp_path: ["--orders", tmp_path / "no.csv"], "No such file or directory: name a readable CSV file"),
        (lambda tmp_path: ["a.csv"], "name files of orders after --orders"),
        (lambda tmp_path: ["--orders", "a.csv", "--invoices", "100"], "give one of the two"),
        (lambda tmp_path: ["--invoices", "5"], "100<=x<=100000"),
    ],
)
def test_bad_input_is_one_line_and_nothing_starts(
    tmp_path: Path, environment: dict[str, str], arguments: object, expected: str
) -> None:
    assert callable(arguments)
    done = run(environment, *arguments(tmp_path))
    assert done.returncode == 2
    assert expected in done.stderr.splitlines()[-1]
    assert done.stdout == ""
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_end_from_outside_leaves_nothing_running(
    environment: dict[str, str], number: signal.Signals, status: int
) -> None:
    command = [*COMMAND, "--invoices", "2000"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any(line == "demo: working\n" for line in demo.stdout)
        demo.send_signal(number)
        assert demo.wait(60) == status
    left = list(Path(environment["TMPDIR"]).glob("metaq-demo-*"))
    assert bool(left) is (number == signal.SIGKILL)
