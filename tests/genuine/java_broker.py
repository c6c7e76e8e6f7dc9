"""MetaQ's own Java broker as a process, for metaq's client and for clusters of both."""

import socket
import subprocess
import time
from pathlib import Path
from typing import IO

from tests.genuine.java_client import MADE
from zk.embedded.java import java_home

START_S = 60.0
CONFIG = """
[system]
brokerId={broker_id}
hostName=127.0.0.1
serverPort={port}
dataPath={data}/data
dataLogPath={data}/log
numPartitions=2
unflushThreshold=0
unflushInterval=10
maxSegmentSize=16777216
maxTransferSize=1048576
[zookeeper]
zk.zkConnect={zookeeper}
zk.zkSessionTimeoutMs=4000
zk.zkConnectionTimeoutMs=10000
zk.zkSyncTimeMs=100
[topic=orders]
numPartitions=4
[topic=invoices]
"""


class JavaBroker:
    """A genuine broker with topics `orders` and `invoices`. A context manager; the port stays through a restart."""

    def __init__(self, data: Path, zookeeper: str, broker_id: int = 1) -> None:
        data.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._data, self._log, self._ini = data, data / "out", data / "server.ini"
        self._ini.write_text(CONFIG.format(broker_id=broker_id, port=self.port, data=data, zookeeper=zookeeper))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _launch(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [str(java_home() / "bin/java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Duser.home={self._data}", "-cp", f"{MADE}/classes:{MADE}/jars/*"]
        command += ["com.taobao.metamorphosis.server.MetamorphosisStartup", "-f", str(self._ini)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._data)

    def start(self) -> "JavaBroker":
        """Return once it listens; it registers itself right after."""
        with self._log.open("ab") as log:
            self._process = self._launch(log)
        deadline = time.monotonic() + START_S
        while True:
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                time.sleep(0.05)
            else:
                return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> "JavaBroker":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.kill()
