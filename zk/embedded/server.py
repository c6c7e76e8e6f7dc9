"""Runs ZooKeeper 3.9 as a child process, for development, the demo and tests, with the jars that PySpark ships.

A production cluster uses its own ensemble, named by a connect string.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from zk.embedded.config import CONFIG, JAR_PATTERNS, explain_log, server_command, server_config
from zk.embedded.held_port import HeldPort
from zk.embedded.java import java_home
from zk.embedded.launch import command
from zk.errors import EmbeddedZooKeeperFailed, EmbeddedZooKeeperMissing

START_TIMEOUT_S = 60  # it takes under a second; a machine that is swapping may need the rest
STOP_TIMEOUT_S = 10
LOG_TAIL_BYTES = 16_384


class EmbeddedZooKeeper:
    """One standalone server. Use as a context manager, or start() and stop().

    *data* keeps the nodes between runs; None: a temporary directory without fsync, removed by stop(). *port* 0: a free
    port, kept across restarts. *address* is the address to listen on, without authentication. One thread owns it.
    """

    def __init__(self, data: Path | None = None, port: int = 0, address: str = "127.0.0.1") -> None:
        self._address = address
        self._given_data = data
        self._data: Path | None = None
        self._port = port
        self._held = HeldPort(address)  # a free port that was chosen, from then on
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connect(self) -> str:
        """Connect string, ``ADDRESS:PORT``; known once started."""
        assert self._port, "not started yet"
        return f"{self._address}:{self._port}"

    @property
    def data(self) -> Path:
        """Directory of the nodes, zoo.cfg and zookeeper.log; known once started."""
        assert self._data is not None, "not started yet"
        return self._data

    def start(self) -> None:
        """Start the server and return when it answers requests.

        The server dies with the calling thread (hence with the process, even on SIGKILL): call it from a thread that
        lives as long as the server should. Raises EmbeddedZooKeeperFailed, JavaNotFound.
        """
        assert self._process is None, "already started"
        if self._data is None:
            self._data = self._make_data()
        port = self._port or self._held.hold_any()
        try:
            self._launch(port)
            self._wait_serving(port)
        except BaseException:
            self.kill()
            self._release()
            raise
        self._port = port

    def stop(self) -> None:
        """Stop the server (SIGTERM, then SIGKILL) and remove temporary data. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self.kill()
        self._release()

    def kill(self) -> None:
        """Kill the server (SIGKILL), keeping its data for restart(). Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Start the server again on the same port and data, killing it first if it runs. Clients reconnect."""
        self.kill()
        self.start()

    def is_alive(self) -> bool:
        """True while the server process runs, serving or not."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self.data / "zookeeper.log"

    def _make_data(self) -> Path:
        if self._given_data is None:
            return Path(tempfile.mkdtemp(prefix="metaq-zookeeper-"))
        try:
            self._given_data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedZooKeeperFailed(
                f"cannot make ZooKeeper's data directory {self._given_data}: {error.strerror}; name another with --data"
            ) from error
        return self._given_data.resolve()

    def _release(self) -> None:
        """Give back the port and remove temporary data."""
        self._held.release()
        if self._given_data is None and self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)  # the system cleans temporary directories anyway
            self._data = None

    def _launch(self, port: int) -> None:
        line = command(server_command(java_home() / "bin" / "java", _jars()), stop_signal=signal.SIGKILL)
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context((self.data / "lock").open("wb"))
                # Two servers on one directory destroy it. The child inherits the lock: held till it dies.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_temporary = self._given_data is None
                (self.data / CONFIG).write_text(server_config(self._address, port, is_temporary=is_temporary))
                log = stack.enter_context(self._log.open("wb"))
                self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                    line,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.data,
                    env=os.environ | {"LC_ALL": "C.UTF-8"},  # else Java opens no directory with other letters
                    pass_fds=[lock.fileno()],
                    process_group=0,  # Ctrl-C in the terminal goes to the owner, which stops the server last
                )
            except BlockingIOError as error:
                raise EmbeddedZooKeeperFailed(
                    f"another ZooKeeper uses {self.data}: stop it, or name another directory with --data"
                ) from error
            except OSError as error:
                raise EmbeddedZooKeeperFailed(f"cannot start ZooKeeper in {self.data}: {error}") from error

    def _wait_serving(self, port: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                if self._port_was_taken():
                    raise EmbeddedZooKeeperFailed(
                        f"port {port} on {self._address} is taken, perhaps by another ZooKeeper: "
                        "stop what listens there, or choose another with --port"
                    )
                raise EmbeddedZooKeeperFailed(
                    f"ZooKeeper on {self._address}:{port} ended with code {code} while starting; "
                    f"the end of {self._log}: {self._log_tail()}"
                )
            if _is_serving(self._address, port) and self._process.poll() is None:
                return
            time.sleep(0.02)
        raise EmbeddedZooKeeperFailed(
            f"ZooKeeper on {self._address}:{port} does not serve after {START_TIMEOUT_S} s; "
            f"the end of {self._log}: {self._log_tail()}"
        )

    def _log_tail(self) -> str:
        return explain_log(self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace"))

    def _port_was_taken(self) -> bool:
        return self._log.exists() and b"BindException" in self._log.read_bytes()


def _jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")  # located, not imported: Spark's package is slow to load
    roots = (spec.submodule_search_locations if spec is not None else None) or []
    jars = sorted(jar for root in roots for name in JAR_PATTERNS for jar in Path(root, "jars").glob(f"{name}.jar"))
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise EmbeddedZooKeeperMissing(
            "no ZooKeeper to start, it comes with PySpark: run pip install 'metaq-broker[embedded]', or use your own"
        )
    return jars


def _is_serving(address: str, port: int) -> bool:
    """Return True if a server there answers `srvr` with its mode: the port opens before the database is loaded."""
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while (chunk := connection.recv(4_096)) and len(answer) < 65_536:
                answer += chunk
    except OSError:
        return False
    return b"Mode: standalone" in answer
