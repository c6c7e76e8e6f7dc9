"""A row and a message through Django's atomic blocks and requests: the outermost COMMIT decides."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import django.test
import pytest
from django.db import DatabaseError, IntegrityError, connections, transaction

from meta_client import Client, NoBroker, NoPartition, TransactionMisuse
from meta_client.coordinator import PrepareFailed
from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions import CommitStep
from meta_client.transactions.frameworks.django import send_on_commit
from tests.fixtures.broker_pool import BrokerPool
from tests.meta_client.transactions import django_shop
from tests.meta_client.transactions.conftest import World, make, running_world


class Shop:
    """One database of Django's, and the world around it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.alias = django_shop.use(world.deciding.url)

    def insert(self, number: int) -> None:
        connections[self.alias].cursor().execute(f"INSERT INTO numbers VALUES ({number})")

    def send(self, number: int, client: Client | None = None) -> None:
        send_on_commit(client or self.world.client, "orders", str(number).encode(), using=self.alias)

    def write(self, number: int, client: Client | None = None) -> None:
        with transaction.atomic(using=self.alias):
            self.insert(number)
            self.send(number, client)


@contextlib.contextmanager
def opened(world: World) -> Iterator[Shop]:
    shop = Shop(world)
    try:
        yield shop
    finally:
        connections[shop.alias].close()
        del connections[shop.alias], connections.settings[shop.alias]


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def shop(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[Shop]:
    with running_world(make(request.param, request), broker_pool) as world, opened(world) as shop:
        yield shop


@pytest.fixture
def large_shop(world: World) -> Iterator[Shop]:
    with opened(world) as shop:
        yield shop


def test_the_outermost_block_decides(shop: Shop) -> None:
    """Messages of a savepoint that is rolled back go with it; callbacks come when all is committed."""
    heard: list[list[int]] = []
    for number in (1, 2):
        with transaction.atomic(using=shop.alias):
            shop.write(number)
            with pytest.raises(ZeroDivisionError), transaction.atomic(using=shop.alias):  # noqa: PT012
                shop.write(9)
                raise ZeroDivisionError
            transaction.on_commit(lambda: heard.append(shop.world.deciding.numbers()), using=shop.alias)
            assert shop.world.deciding.numbers() == list(range(1, number))
        assert connections[shop.alias].get_autocommit()
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=shop.alias):  # noqa: PT012
        shop.write(3)
        raise ZeroDivisionError
    with transaction.atomic(using=shop.alias):
        shop.insert(4)
        transaction.set_rollback(True, using=shop.alias)
        with pytest.raises(TransactionMisuse, match="one"), Client(shop.world.zookeeper) as other:  # noqa: PT012
            shop.send(4)
            shop.send(4, other)
    assert heard == [[1], [1, 2]]
    shop.world.wait_quiet()
    shop.world.check([1, 2])


def test_a_request_that_raises_after_the_block(shop: Shop) -> None:
    def raises() -> None:
        shop.write(1)
        raise ZeroDivisionError

    browser = django.test.Client()
    django_shop.view[:] = [raises]
    with pytest.raises(ZeroDivisionError):
        browser.get("/")
    django_shop.view[:] = [lambda: shop.write(2)]
    assert browser.get("/").status_code == 200
    shop.world.wait_quiet()
    shop.world.check([2])


def test_what_can_t_be_prepared_rolls_the_block_back(shop: Shop) -> None:
    connection, heard = connections[shop.alias], list[int]()
    at: list[CommitStep] = []

    def die(step: CommitStep, gtrid: str) -> None:
        if step is at[-1]:
            raise ZeroDivisionError

    with shop.world.open_client(observer=die) as client:
        for step in (CommitStep.PREPARED, CommitStep.RECORDED):
            at.append(step)
            with pytest.raises(ZeroDivisionError), transaction.atomic(using=shop.alias):  # noqa: PT012
                shop.write(1, client)
                transaction.on_commit(lambda: heard.append(1), using=shop.alias)
            assert connection.get_autocommit()
    with pytest.raises(NoPartition), transaction.atomic(using=shop.alias):  # noqa: PT012
        shop.insert(1)
        send_on_commit(shop.world.client, "nowhere", b"1", using=shop.alias)
    shop.world.brokers[0].kill()
    with pytest.raises(NoBroker):
        shop.write(1)
    shop.world.brokers[0].start()
    assert not heard
    shop.world.wait_quiet()
    shop.world.check([])


def test_what_the_database_refuses(large_shop: Shop) -> None:
    shop = large_shop
    shop.world.deciding.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(IntegrityError), transaction.atomic(using=shop.alias):  # noqa: PT012
        connections[shop.alias].cursor().execute("INSERT INTO once VALUES (1), (1)")
        shop.send(1)
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(PrepareFailed, match="a statement failed"),
        transaction.atomic(using=shop.alias),
    ):
        shop.send(1)
        with pytest.raises(DatabaseError):
            connections[shop.alias].cursor().execute("INSERT INTO nowhere VALUES (1)")
    shop.write(2)
    shop.world.wait_quiet()
    shop.world.check([2])


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_is_ended_inside_the_block(shop: Shop, word: str) -> None:
    """By SQL, or by a deadlock that is swallowed: Django does not notice, and goes on in another one."""
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(PrepareFailed, match="ended inside the block"),
        transaction.atomic(using=shop.alias),
    ):
        shop.send(1)
        shop.write(2)
        connections[shop.alias].cursor().execute(word)
        connections[shop.alias].cursor().execute("BEGIN")
        shop.insert(3)
    shop.write(4)
    shop.world.wait_quiet()
    assert shop.world.messages() == [4]
    assert shop.world.deciding.numbers() == ([2, 4] if word == "COMMIT" else [4])


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_an_end_between_the_row_and_commit_is_settled_by_the_row(shop: Shop, word: str) -> None:
    """By an observer, which goes on in another transaction: the block tells what became of its own."""

    def end(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.RECORDED:
            for statement in (word, "BEGIN"):
                connections[shop.alias].cursor().execute(statement)
            shop.insert(3)

    outcome = pytest.raises(PrepareFailed, match="turned out") if word == "ROLLBACK" else contextlib.nullcontext()
    with shop.world.open_client(observer=end) as client:
        with outcome:
            shop.write(1, client)
        shop.world.wait_quiet()
    shop.write(2)
    shop.world.wait_quiet()
    shop.world.check([1, 2] if word == "COMMIT" else [2])


@pytest.mark.parametrize("at", [CommitStep.RECORDED, None])
def test_the_connection_is_lost(large_shop: Shop, at: CommitStep | None) -> None:
    shop = large_shop

    def cut(step: CommitStep | None, gtrid: str) -> None:
        if step is at:
            shop.world.deciding.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            )

    with shop.world.open_client(observer=cut) as client:
        with pytest.raises(PrepareFailed), transaction.atomic(using=shop.alias):  # noqa: PT012
            shop.write(1, client)
            if at is None:
                cut(None, "")
        shop.write(2)
        shop.world.wait_quiet()
    shop.world.check([2])


def test_what_is_refused(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(TransactionMisuse, match="atomic"):
        shop.send(1)
    with transaction.atomic(using=shop.alias), pytest.raises(TypeError, match="encode it"):
        send_on_commit(shop.world.client, "orders", "1", using=shop.alias)  # type: ignore[arg-type]
    with pytest.raises(CannotEnlist, match="send_on_commit"):
        shop.world.client.transaction(connections[shop.alias])
    alias = django_shop.use(str(tmp_path / "other.db"))
    with transaction.atomic(using=alias), pytest.raises(CannotEnlist, match="metaq txn init"):
        send_on_commit(shop.world.client, "orders", b"1", using=alias)
    connections[alias].close()
    del connections[alias], connections.settings[alias]
