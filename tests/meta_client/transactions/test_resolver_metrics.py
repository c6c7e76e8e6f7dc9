"""`metaq txn resolver --admin-port`: what it did, what it can't reach, and a taken port."""

import os
import re
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

from meta_client.admin.log_samples import FAMILIES as LOG
from meta_client.net.identity import new_session_id
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.resolver import Resolver
from meta_client.transactions.resolver_metrics import FAMILIES, PASS_S_MAX, WAITING_AGE, ready
from tests.fixtures.forked import run_metaq, start_metaq, start_module
from tests.fixtures.scrape import SERVED, Scrape, health, wait_for
from tests.meta_client.transactions.conftest import World

CRASHING = "tests.meta_client.transactions.crashing"


def test_what_a_resolver_does_and_cannot_reach(lite_world: World, tmp_path: Path) -> None:
    world, log = lite_world, tmp_path / "resolver.log"
    place = world.deciding.url.removeprefix("sqlite:///")
    words = ["txn", "resolver", "--database", world.deciding.url, "--zk", world.zookeeper, "--admin-port", "0"]
    with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
        process = start_metaq([*words, "--age", "0.2", "--interval", "0.1"], stdin=nothing, stdout=out, stderr=out)
    try:
        url = wait_for(lambda: SERVED.search(log.read_text()), bool)[1]
        wait_for(lambda: health(url, "ready")[0], lambda status: status == 200)
        seen = Scrape(url)
        assert seen.families == {family.name for family in (*FAMILIES, *LOG)} - {WAITING_AGE.name}, "nothing waits"
        assert seen.get("metaq_resolver_branches_total", outcome="rolled_back") == 0
        assert start_module(CRASHING, "sqlite3", place, world.zookeeper, "2", "PREPARED").wait() == -9
        assert start_module(CRASHING, "sqlite3", place, world.zookeeper, "3", "DECIDED").wait() == -9
        seen = wait_for(
            lambda: Scrape(url),
            lambda seen: (
                seen.get("metaq_resolver_branches_total", outcome="rolled_back") == 1
                and seen.get("metaq_resolver_branches_total", outcome="committed") == 1
            ),
        )
        assert seen.get("metaq_resolver_hazards_total") == 0
        wait_for(lambda: Scrape(url).get("metaq_resolver_branches_waiting"), lambda count: count == 0)
        age_s = Scrape(url).get("metaq_resolver_last_pass_age_seconds")
        assert age_s is not None
        assert 0 <= age_s < 60
        world.brokers[0].kill()
        status, told = wait_for(lambda: health(url, "ready"), lambda found: found[0] == 503)
        assert status == 503
        assert re.match(r"broker 0: ", told["why_not"][0])
        assert (Scrape(url).get("metaq_resolver_unreachable") or 0) >= 1
        assert health(url, "live")[0] == 200
        world.brokers[0].start()
        wait_for(lambda: health(url, "ready")[0], lambda status: status == 200)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_pass_that_does_not_end_is_no_ready_one(lite_world: World) -> None:
    """Stands for a database that takes the question and hangs."""
    client, name, late_s = lite_world.client, lite_world.deciding.identity.name, 0.0
    brokers = Brokers(XaVerbs(client.topology, client.connections, new_session_id()), name)
    resolver = Resolver(brokers, name, lite_world.deciding.table, clock=lambda: time.monotonic() + late_s)
    with closing(resolver):
        resolver.run_pass()
        assert ready(resolver, 1.0).why_not == ()
        late_s = PASS_S_MAX + 2
        assert "it has ended no pass for 32 s" in ready(resolver, 1.0).why_not[0]
        assert ready(resolver, 60.0).why_not == ()


def test_a_taken_port_names_the_option(lite_world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        database = ("--database", lite_world.deciding.url, "--zk", lite_world.zookeeper)
        done = run_metaq("txn", "resolver", *database, "--once", "--admin-port", port)
    assert done.returncode == 2
    assert f"cannot serve metrics on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "choose another with --admin-port" in done.stderr
