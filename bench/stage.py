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

from zk.embedded import EmbeddedZooKeeper

READY = re.compile(r"serves at meta://")
START_TIMEOUT_S = 30
CONFIG = """
[topics.bench]
partitions = 8
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where to connect, and a directory on the disk that the broker writes to."""

    zookeeper: str
    directory: Path


@contextlib.contextmanager
def stage(flush: str) -> Iterator[Stage]:
    """Run ZooKeeper and a broker with topic `bench`, 8 partitions; both end with the block."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as name:
        directory = Path(name)
        config = directory / "broker.toml"
        config.write_text(CONFIG)
        with EmbeddedZooKeeper(directory / "zookeeper") as zookeeper:
            words = [sys.executable, "-m", "meta_client.cli.main", "broker", "--data", str(directory / "broker")]
            words += ["--id", "0", "--port", "0", "--zk", zookeeper.connect, "--config", str(config), "--flush", flush]
            log = directory / "broker.log"
            with log.open("wb") as out:
                broker = subprocess.Popen(words, stdout=out, stderr=out)
            try:
                deadline = time.monotonic() + START_TIMEOUT_S
                while not READY.search(log.read_text()):
                    if broker.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"the broker did not start:\n{log.read_text()}")
                    time.sleep(0.02)
                yield Stage(zookeeper.connect, directory)
            finally:
                broker.send_signal(signal.SIGTERM)
                broker.wait()
