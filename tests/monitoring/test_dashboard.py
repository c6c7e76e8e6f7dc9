"""Each query of the dashboard has an answer: over what brokers, a consumer, a resolver and a coordinator export."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from journal.records.xid import XaKey, Xid
from meta_client import Client
from meta_client.cli.consumer_admin import serve_consumer_admin
from meta_client.coordinator import Coordinator
from meta_client.protocol.requests import TransactionVerb as V
from tests.fixtures.postgres import Database
from tests.fixtures.promtool import STEP_S, Targets, promtool, scraped
from tests.fixtures.replicas import Replicas, wait_until
from tests.fixtures.scrape import ADMIN, SERVED, Scrape, admin_url, wait_for
from tests.meta_client.transactions.conftest import make_postgres
from tests.monitoring.test_alerts import SYNC, exporting, started_resolver
from tests.monitoring.test_rules import expressions
from zk.embedded.chroot import Chroot

STEPS = 40  # ten minutes
# Ages of what a coordinator has not finished: there is nothing of the kind here, as all is well.
OF_NOTHING = {
    "metaq_coordinator_decisions_unfinished_oldest_age_seconds",
    "metaq_coordinator_rollbacks_pending_oldest_age_seconds",
}


@contextlib.contextmanager
def cluster(tmp_path: Path, zookeeper: Chroot, database: Database) -> Iterator[tuple[Targets, Callable[[], None]]]:
    """A master and its slave, a consumer, a resolver and a coordinator; *work* has something to do for all of them."""
    config = ADMIN.replace("4000", "8000") + SYNC
    log, deciding = tmp_path / "resolver.log", make_postgres(database)
    with contextlib.ExitStack() as stack:
        replicas = stack.enter_context(Replicas(tmp_path / "replicas", zookeeper.connect, config))
        wait_until(lambda: replicas.is_in_sync(replicas.slaves[0]), "in sync")
        resolver = started_resolver(log, deciding.url, zookeeper.connect)
        stack.callback(resolver.wait)
        stack.callback(resolver.kill)
        client = stack.enter_context(Client(zookeeper.connect))
        coordinator = Coordinator.open(tmp_path / "decisions", "shop")
        stack.callback(coordinator.close)
        producer, connection = client.producer(), stack.enter_context(contextlib.closing(database.connect()))
        shop = client.producer("shop")

        def work() -> None:
            with coordinator.transaction(connection, shop, topics=("orders",)):
                connection.execute("SELECT 1")
                shop.send("orders", b"message")
            producer.send("orders", b"message", partition="0-0")

        wire = stack.enter_context(replicas.master.client())
        in_doubt = XaKey(Xid.of("order", "b"), "uq")
        wire.verb(V.BEGIN, in_doubt)
        wire.put("orders", 0, b"in doubt", in_doubt)
        wire.verb(V.PREPARE, in_doubt)
        consumer = stack.enter_context(client.consumer("billing"))

        consumer.subscribe("orders", on_message=lambda message: None)
        consumer.start()
        url = wait_for(lambda: SERVED.search(log.read_text()), bool)[1]
        wait_for(lambda: Scrape(url).get("metaq_resolver_last_pass_age_seconds"), lambda age: age is not None)
        work()
        targets = {
            "master": admin_url(replicas.master),
            "slave": admin_url(replicas.slaves[0]),
            "consumer": stack.enter_context(contextlib.closing(serve_consumer_admin(client, 0))).url,
            "resolver": url,
            "coordinator": stack.enter_context(exporting(coordinator)),
        }
        yield targets, work


def test_each_query_has_an_answer(tmp_path: Path, zookeeper: Chroot, database: Database) -> None:
    tool = promtool()
    with cluster(tmp_path, zookeeper, database) as (targets, work):
        first = scraped(targets)
        for _ in range(5):
            work()
        time.sleep(2.5)  # checkpoints, heartbeats, and passes of the resolver
        second = scraped(targets)
    assert [key for key, value in second.items() if key.startswith("up{") and not value] == []
    series = [{"series": key, "values": _values(first.get(key), value)} for key, value in sorted(second.items())]
    checks = [  # NaN is no answer
        _expect(f"count(({query}) == ({query})) > bool 0", None if query in OF_NOTHING else 1)
        for query in expressions()
    ]
    # A slave has what its master has, and is not one more.
    size = "metaq_topic_size_bytes"
    checks += [
        _expect(query, 1) for query in expressions() if query.startswith("sum(") and "_branches_in_doubt" in query
    ]
    checks += [
        _expect(f'sum({query}) - sum({size}{{instance="master"}})', 0) for query in expressions() if size in query
    ]
    assert len(checks) == len(expressions()) + 2
    test = {"interval": f"{STEP_S}s", "input_series": series, "promql_expr_test": checks}
    path = tmp_path / "dashboard-test.json"  # JSON is YAML
    path.write_text(json.dumps({"evaluation_interval": f"{STEP_S}s", "tests": [test]}))
    done = subprocess.run([tool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join(line for line in (done.stdout + done.stderr).splitlines() if line.strip())


def _expect(query: str, value: float | None) -> dict[str, object]:
    """Return promtool's check that *query* has that value at the end; None: that it has none."""
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    return {"expr": query, "eval_time": f"{STEPS * STEP_S}s", "exp_samples": samples}


def _values(before: float | None, now: float) -> str:
    """Return promtool's series: what grew between two scrapes goes on growing."""
    start = now if before is None else before
    return f"{start:.9f}{max(now - start, 0.0):+.9f}x{STEPS}"
