"""A ZooKeeper and one broker process to measure, on a fresh directory."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zk.embedded.server import EmbeddedZooKeeper

READY = re.compile(r"serves at meta://([^:]+):(\d+)")
START_TIMEOUT_S = 30
CONFIG = "[topics.bench]\npartitions = 8\n"


@dataclass(frozen=True, slots=True)
class Environment:
    """Addresses to connect to, and a directory on the disk that the broker writes to."""

    zookeeper: str
    directory: Path
    broker: "subprocess.Popen[bytes]"
    address: tuple[str, int]
    start_s: float  # what the broker took, until it was registered

    @property
    def broker_pid(self) -> int:
        return self.broker.pid

    @property
    def data(self) -> Path:
        """Directory of the broker."""
        return self.directory / "broker"

    def stop(self) -> None:
        """End the broker with SIGTERM. Idempotent."""
        self.broker.send_signal(signal.SIGTERM)
        self.broker.wait()

    def memory(self) -> dict[str, float]:
        """Return the broker's resident memory in MB: all of it, and the part that is not pages of mapped files."""
        lines = Path(f"/proc/{self.broker_pid}/status").read_text().splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest}
        return {"rss": kib["VmRSS"] * 1024 / 1e6, "anonymous": kib["RssAnon"] * 1024 / 1e6}


@contextlib.contextmanager
def environment(flush: str, config: str = CONFIG, brokers: int = 1) -> Iterator[Environment]:
    """Run ZooKeeper and a broker with *config*, by default topic `bench` with 8 partitions; both end with the block.

    *brokers*: of one supervisor, whose process and first address the environment then has.
    """
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as name:
        directory = Path(name)
        path = directory / "broker.toml"
        path.write_text(config)
        with EmbeddedZooKeeper(directory / "zookeeper") as zookeeper:
            words = [sys.executable, "-m", "meta_client.cli.main", "broker", "--data", str(directory / "broker")]
            words += ["--id", "0", "--port", "0", "--zk", zookeeper.connect, "--config", str(path), "--flush", flush]
            words += ["--processes", str(brokers)]
            log = directory / "broker.log"
            with log.open("wb") as out:
                broker = subprocess.Popen(words, stdout=out, stderr=out)
            try:
                started = time.monotonic()
                deadline = started + START_TIMEOUT_S
                while len(ready := READY.findall(log.read_text())) < brokers:
                    if broker.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"the broker did not start:\n{log.read_text()}")
                    time.sleep(0.02)
                address = (ready[0][0], int(ready[0][1]))
                yield Environment(zookeeper.connect, directory, broker, address, time.monotonic() - started)
            finally:
                broker.send_signal(signal.SIGTERM)  # does nothing to an ended process
                broker.wait()
