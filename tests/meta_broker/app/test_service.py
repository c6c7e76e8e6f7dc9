"""The systemd unit and the Dockerfile: what can be tried of them without root, and without a container engine.

With one: tests/integration/test_container.py.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from journal.wal.storage import MIB
from meta_broker.config.broker_section import BrokerSection
from tests.fixtures.broker import BrokerProcess, running_broker

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "docs/operations/systemd/metaq-broker@.service"
DOCKERFILE = ROOT / "Dockerfile"


def settings() -> dict[str, str]:
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if not line.startswith(("#", "[")))
    return {key: value for key, _, value in lines if key}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: Debian's package is systemd")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """Its program must be there: the path is that of this environment's command."""
    unit = tmp_path / "metaq-broker@0.service"
    unit.write_text(UNIT.read_text().replace("/opt/metaq/bin/metaq", str(Path(sys.executable).parent / "metaq")))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_fits_the_broker() -> None:
    unit, section = settings(), BrokerSection()
    assert unit["Type"] == "notify"
    assert unit["RestartPreventExitStatus"] == "2"
    assert float(unit["TimeoutStopSec"]) > 10 * section.stop_seconds_max
    assert int(unit["LimitNOFILE"]) > 10 * section.connections_max
    assert unit["StateDirectory"] == "metaq/%i"
    assert "--data /var/lib/metaq/%i --id %i " in unit["ExecStart"]
    assert section.segment_bytes > MIB


def test_a_broker_tells_its_manager_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, address in enumerate((str(tmp_path / "notify"), f"@metaq-test-{os.getpid()}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address.replace("@", "\0"))
            manager.settimeout(60)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            with running_broker(tmp_path / f"broker-{number}", None) as broker:
                ready = manager.recv(65536).decode()
                assert ready.startswith("READY=1\nSTATUS=broker 0 serves at ")
                assert broker.stop() == 0
                assert manager.recv(65536) == b"STOPPING=1"


def test_a_manager_that_is_gone_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    broker = BrokerProcess(tmp_path / "broker", None)
    try:
        assert broker.start().stop() == 0
    finally:
        broker.kill()


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, lines joined, comments left out."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    return [(name, rest) for line in text.splitlines() if line.strip() for name, _, rest in [line.partition(" ")]]


def test_the_image_is_built_in_two_stages_of_a_pinned_base_and_runs_without_root_and_java() -> None:
    found = instructions()
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {name for name, _ in found} <= known | {"ENTRYPOINT", "CMD"}
    bases = [rest for name, rest in found if name == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+( AS build)?", base) for base in bases)
    assert "java" not in DOCKERFILE.read_text().lower().replace("no java", "")
    users = [rest for name, rest in found if name == "USER"]
    assert users == ["10001:10001"]
    assert all(int(part) > 0 for part in users[-1].split(":"))
    for name, rest in found:
        if name in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("["), f"{name} in the form that passes signals on"
        if name == "COPY" and "--from" not in rest:
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest


def test_every_dependency_of_a_broker_has_its_version_from_the_lock_file(tmp_path: Path) -> None:
    """The build's own command for that is run; pip then installs nothing else than these."""
    (run,) = [rest for name, rest in instructions() if name == "RUN" and "constraints.txt" in rest]
    command = run.partition(" && ")[0].strip()
    assert command.startswith("grep ")
    subprocess.run(
        ["/bin/sh", "-ec", command.replace("requirements.lock", str(ROOT / "requirements.lock"))],
        cwd=tmp_path,
        check=True,
    )
    pins = {line.partition("==")[0].lower() for line in (tmp_path / "constraints.txt").read_text().splitlines()}
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert needed is not None
    names = re.findall(r'^\s*"([A-Za-z0-9._-]+)', needed[1], re.MULTILINE)
    assert names
    assert {name.lower() for name in names} <= pins
