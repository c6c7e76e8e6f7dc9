"""No relay carries out a decision of another one that the database may still lose."""

import threading
from contextlib import closing
from pathlib import Path

from meta_client.outbox import Relay
from meta_client.transactions import CommitStep
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.mariadb import EmbeddedMariaDb, made_in
from tests.fixtures.replicas import wait_until
from tests.meta_client.outbox.conftest import OutboxWorld, drain
from tests.meta_client.transactions.conftest import make_mariadb, running_world


def test_a_batch_whose_decision_is_not_on_the_disk_yet_is_not_committed(
    slow_directory: Path, broker_pool: BrokerPool
) -> None:
    """InnoDB lets the next relay in, and shows it the batch, before that: a power cut could undo the rows' removal, and
    the messages would be sent twice."""
    flag = slow_directory / "flag"
    environment = {"LD_PRELOAD": str(slow_directory / "slow.so"), "SLOW_FLAG": str(flag)}

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.RECORDED:
            flag.touch()

    with (
        EmbeddedMariaDb(environment=environment) as server,
        running_world(make_mariadb(made_in(server)), broker_pool) as world,
    ):
        on = OutboxWorld(world)
        on.work(1, 2, 3)
        with (
            on.closing,
            world.open_client(observer=observe, resolves=False) as client,
            closing(Relay(client, on.url)) as first,
        ):
            second = on.relay()
            deciding = threading.Thread(target=first.run_pass)
            deciding.start()
            try:
                wait_until(lambda: on.status().waiting == 0, "others see it")
                other = threading.Thread(target=second.run_pass)
                other.start()
                other.join(2.0)
                assert (deciding.is_alive(), world.messages()) == (True, [])
            finally:
                flag.unlink()
            deciding.join()
            other.join()
            drain(second)
            world.check([1, 2, 3])
            assert (first.counts.moved, second.trouble) == (3, None)
