"""The Dockerfile's image in containers of a Docker daemon: built, run by its own user, healthy, ended, started again.

`METAQ_IMAGE` names an image that was built before. Without it one is built, from the registry and the package index.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meta_client.protocol.responses import Value
from tests.fixtures.wire import WireClient

ROOT = Path(__file__).parents[2]
BUILD_S, WAIT_S = 1500.0, 90.0
CONFIG = '[broker]\nhost = "0.0.0.0"\nadvertised_host = "127.0.0.1"\ninsecure = true\n[topics.orders]\npartitions = 1\n'


def docker(*words: str, limit_s: float = WAIT_S) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout + done.stderr  # a container's log is on both


def has_daemon() -> bool:
    return shutil.which("docker") is not None and not subprocess.run(["docker", "info"], capture_output=True).returncode


pytestmark = [
    pytest.mark.timeout(BUILD_S + 600),
    pytest.mark.skipif(not has_daemon(), reason="no Docker daemon answers `docker info`"),
]


@pytest.fixture(scope="module")
def image() -> str:
    if (named := os.environ.get("METAQ_IMAGE")) is not None:
        return named
    return docker("build", "--quiet", str(ROOT), limit_s=BUILD_S).split()[-1]


@pytest.fixture
def volume() -> Iterator[str]:
    name = docker("volume", "create").strip()
    yield name
    docker("volume", "rm", name)


class Container:
    """A broker of *image* in the network of this machine."""

    def __init__(self, image: str, volume: str, directory: Path) -> None:
        directory.chmod(0o755)
        (directory / "broker.toml").write_text(CONFIG)
        self.port, admin = free_ports(2)
        options = ["--detach", "--network", "host", "--volume", f"{volume}:/var/lib/metaq", "--health-interval", "1s"]
        options += [
            "--volume",
            f"{directory}:/etc/metaq:ro",
            "--env",
            f"METAQ_HEALTH=http://127.0.0.1:{admin}/health/live",
        ]
        broker = ["broker", "--data", "/var/lib/metaq/data", "--id", "0", "--config", "/etc/metaq/broker.toml"]
        ports = ["--port", str(self.port), "--admin-port", str(admin)]
        self.id = docker("run", *options, image, *broker, *ports).split()[-1]

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        docker("rm", "--force", self.id)

    def state(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(docker("inspect", "--format", "{{json .State}}", self.id))
        return found

    def wait_healthy(self) -> None:
        wait_until(lambda: '"Status": "healthy"' in json.dumps(self.state()), lambda: docker("logs", self.id))


def wait_until(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def test_the_image_has_the_native_core_and_a_user_without_rights(image: str) -> None:
    assert "native core" in docker("run", "--rm", "--network", "none", image, "version")
    look = "id; ls -lAn /var/lib/metaq; ls -ldn /var/lib/metaq"
    shell = docker("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", look)
    assert "uid=10001(metaq) gid=10001(metaq)" in shell
    assert "total 0\n" in shell  # nothing is there to hide what is of the broker
    assert "drwx------ 2 10001 10001" in shell


def test_a_broker_is_healthy_ends_with_0_and_its_volume_has_the_messages(
    image: str, volume: str, tmp_path: Path
) -> None:
    with Container(image, volume, tmp_path) as first:
        first.wait_healthy()
        with WireClient(first.port) as client:
            place = client.put("orders", 0, b"of the first container")
        docker("stop", "--time", "60", first.id)
        assert (first.state()["ExitCode"], first.state()["OOMKilled"]) == (0, False)
        assert "checkpoint written" in docker("logs", first.id)
    with Container(image, volume, tmp_path) as second:
        second.wait_healthy()
        with WireClient(second.port) as client:
            assert place.offset is not None
            found = client.get("orders", 0, place.offset)
        assert isinstance(found, Value)
        assert b"of the first container" in found.body
        docker("kill", "--signal", "KILL", second.id)
        assert docker("wait", second.id).strip() == "137"
        docker("start", second.id)
        second.wait_healthy()
        with WireClient(second.port) as client:
            assert client.put("orders", 0, b"after a kill").offset is not None


def test_a_broker_that_hangs_is_unhealthy(image: str, volume: str, tmp_path: Path) -> None:
    with Container(image, volume, tmp_path) as broker:
        broker.wait_healthy()
        docker("kill", "--signal", "STOP", broker.id)
        wait_until(lambda: '"Status": "unhealthy"' in json.dumps(broker.state()), lambda: docker("logs", broker.id))
        docker("kill", "--signal", "CONT", broker.id)
        broker.wait_healthy()
