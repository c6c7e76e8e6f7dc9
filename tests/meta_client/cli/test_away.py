"""Commands while one of two brokers is away: what is left out is told, and is no 0."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: Chroot, broker: BrokerProcess) -> Chroot:
    """Broker 0, which is up, and broker 7, which has a message of key k and is stopped once its journal has a node,
    which stays."""
    other = BrokerProcess(tmp_path / "other", zookeeper.connect, broker_id=7)
    other.start()
    try:
        run(zookeeper, "produce", "orders", "--partition", "7-0", "--attribute", "k", stdin="seven\n")
        run(zookeeper, "produce", "orders", "--partition", "0-0", "--attribute", "here", stdin="zero\n")
        with ZooKeeperSession(zookeeper.connect) as session:
            while "7" not in session.children(f"{session.paths.root}/metaq/journals"):
                time.sleep(0.05)
        assert other.stop() == 0
    finally:
        other.kill()
    assert broker.is_running
    return zookeeper


def run(
    zookeeper: Chroot, command: str, *words: str, stdin: str = "", status: int = 0
) -> subprocess.CompletedProcess[str]:
    done = run_metaq(*command.split(), *words, "--zk", zookeeper.connect, stdin=stdin)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def test_a_message_of_a_broker_that_is_away_is_not_said_to_be_missing(cluster: Chroot) -> None:
    done = run(cluster, "find", "orders", "--key", "k", status=2)
    assert done.stderr == "warning: broker 7 has no master in ZooKeeper: start it, or wait until it is back\n"
    assert "broker 7 has no master" in run(cluster, "find", "orders", "--key", "here", status=2).stderr
    assert run(cluster, "find", "orders", "--key", "here", "--limit", "1").stderr == ""


def test_what_is_shown_without_a_brokers_partitions_is_called_incomplete(cluster: Chroot) -> None:
    said = "error: incomplete: broker 7 has no master in ZooKeeper: see `metaq brokers`\n"
    done = run(cluster, "offsets", "orders", "--json", status=1)
    assert ([json.loads(line)["partition"] for line in done.stdout.splitlines()], done.stderr) == (
        ["0-0", "0-1", "0-2", "0-3"],
        said,
    )
    done = run(cluster, "topics", "--json", status=1)
    assert ({json.loads(line)["broker"] for line in done.stdout.splitlines()}, done.stderr) == ({"0-m"}, said)
    done = run(cluster, "consume", "orders", status=1)
    assert (done.stdout, done.stderr) == ("zero\n", said)
    for more in (["--count", "1"], ["--partition", "0-0"]):
        assert run(cluster, "consume", "orders", *more).stdout == "zero\n"


def test_a_group_that_has_read_what_is_up_is_not_said_to_have_read_all(cluster: Chroot) -> None:
    said = "error: incomplete: broker 7 has no master in ZooKeeper: see `metaq brokers`\n"
    assert run(cluster, "consume", "orders", "--group", "audit", "--count", "1").stdout == "zero\n"
    done = run(cluster, "consume", "orders", "--group", "audit", status=1)
    assert (done.stdout, done.stderr) == ("", said)
    for words in ("groups", "groups describe audit"):
        done = run(cluster, words, "--json", status=1)
        assert ({json.loads(line)["lag"] for line in done.stdout.splitlines()}, done.stderr) == ({0}, said)
    done = run(cluster, "groups reset audit --to earliest --yes", "--json", status=1)
    assert ([json.loads(line)["partition"] for line in done.stdout.splitlines()], done.stderr) == (
        ["0-0", "0-1", "0-2", "0-3"],
        said,
    )
    run(cluster, "groups reset audit /0-0 --to earliest --yes")


@pytest.mark.parametrize("words", ["topics show orders", "topics close orders 3", "checkpoint"])
def test_what_a_broker_that_is_away_was_not_told_is_an_error(cluster: Chroot, words: str) -> None:
    done = run(cluster, words, "--json", status=1)
    assert [str(json.loads(line)["broker"]) for line in done.stdout.splitlines()] == ["0"]
    assert done.stderr.startswith("error: broker 7: it has no address in ZooKeeper that can be read: start it, or name")
    run(cluster, words, "--broker", "0")
