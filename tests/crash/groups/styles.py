"""Ways in which a member consumes. Each returns once `Setup.ended` is set and its consumer is closed."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import meta_client.aio
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.error_policy import OnReject, Reject, Retry
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetStore
from tests.crash.groups.habits import STEP_S, Habits

FETCH_S = 0.2
RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Setup:
    """Group, topic, store and habits of a member."""

    group: str
    topic: str
    store: OffsetStore | None
    config: ConsumerConfig
    habits: Habits
    ended: threading.Event

    @property
    def accept(self) -> Callable[[ReceivedMessage], bool] | None:
        return None if self.habits.is_steady else self.habits.accept

    def handle(self, handed: Batch | ReceivedMessage) -> None:
        """Do as a listener does."""
        time.sleep(self.habits.begin(handed))
        self.habits.end(handed)

    async def handle_async(self, handed: Batch | ReceivedMessage) -> None:
        await asyncio.sleep(self.habits.begin(handed))
        self.habits.end(handed)

    def step_until_ended(self) -> None:
        while not self.ended.wait(STEP_S):  # a signal is handled between two instructions of this thread
            if not self.habits.is_steady:
                self.habits.step()


def _listen(client: Client, setup: Setup, **how: Any) -> None:
    consumer = setup.habits.rules = client.consumer(setup.group, setup.store, config=setup.config)
    consumer.subscribe(setup.topic, accept=setup.accept, **how)
    with consumer:
        setup.step_until_ended()


def batches(client: Client, setup: Setup) -> None:
    """A batch is delivered twice, then message by message."""
    on_reject: OnReject = "stop" if setup.habits.is_steady else "dead_letter"
    _listen(client, setup, on_batch=setup.handle, retries_max=1, on_reject=on_reject)


def stopping(client: Client, setup: Setup) -> None:
    """A partition stops at a failure, until its user resumes it."""
    setup.habits.rejects = False
    _listen(client, setup, on_batch=setup.handle, retries_max=0)


def messages(client: Client, setup: Setup) -> None:
    _listen(client, setup, on_message=setup.handle, on_reject="dead_letter")


def acknowledged(client: Client, setup: Setup) -> None:
    """Acknowledge some time after the listener has returned; sometimes roll back instead."""
    done: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()

    def on_message(message: ReceivedMessage) -> None:
        is_dead_letter = setup.habits.is_redelivery(message)
        try:
            setup.handle(message)
        except Reject as error:
            if is_dead_letter:
                done.put(message)  # it may have come from its partition again
                raise
            setup.habits.rules.reject(message, error)
        done.put(message)

    def acknowledge() -> None:
        while not setup.ended.wait(0.1):
            for _ in range(done.qsize()):
                message = done.get()
                if setup.habits.is_rolling_back(message):
                    setup.habits.rules.rollback(message.topic, message.partition)
                else:
                    setup.habits.rules.acknowledge(message)

    thread = threading.Thread(target=acknowledge)
    thread.start()
    _listen(client, setup, on_message=on_message, acknowledge="manual", on_reject="dead_letter")
    thread.join()


def pulled(client: Client, setup: Setup) -> None:
    consumer = setup.habits.rules = client.consumer(setup.group, setup.store, config=setup.config)
    consumer.subscribe(setup.topic, accept=setup.accept, on_reject="dead_letter")
    with consumer:
        thread = threading.Thread(target=setup.step_until_ended)
        thread.start()
        while not setup.ended.is_set():
            for message in consumer.fetch(1, FETCH_S):
                _take(consumer, setup, message)
        thread.join()


def _take(consumer: Consumer, setup: Setup, message: ReceivedMessage) -> None:
    """Handle a message until it is done, or rejected: fetch() has no retries."""
    while True:
        try:
            return setup.handle(message)
        except Reject as error:
            return consumer.reject(message, error)
        except (RuntimeError, Retry):  # what a habit raises now and then
            time.sleep(RETRY_S)


async def _listen_in_tasks(client: meta_client.aio.Client, setup: Setup, **how: Any) -> None:
    consumer = client.consumer(setup.group, setup.store, config=setup.config)
    setup.habits.rules = consumer._rules
    consumer.subscribe(setup.topic, accept=setup.accept, on_reject="dead_letter", **how)
    async with consumer:
        while not setup.ended.is_set():
            await asyncio.sleep(STEP_S)
            setup.habits.step()


async def tasks(client: meta_client.aio.Client, setup: Setup) -> None:
    await _listen_in_tasks(client, setup, on_message=setup.handle_async)


async def batch_tasks(client: meta_client.aio.Client, setup: Setup) -> None:
    await _listen_in_tasks(client, setup, on_batch=setup.handle_async, retries_max=1)


STYLES: Final = {style.__name__: style for style in (batches, stopping, messages, acknowledged, pulled)}
TASK_STYLES: Final = {style.__name__: style for style in (tasks, batch_tasks)}
LATE: Final = (acknowledged.__name__, pulled.__name__)  # what they are done with is consumed some time later
