"""The native core adds, decodes and stamps messages as Python does; whatever it is given, and from many threads."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.checksum import crc32
from meta_client import core
from meta_client.consumer.messages.batch import decode_batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.metadata.topology import TopicView
from meta_client.producer.batch import ProducerBatch, SendHandle
from meta_client.producer.interfaces import QuickAdd
from meta_client.producer.message_run import MessageRun
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.sending_engine import SendingEngine
from meta_client.protocol.limits import BATCH_MESSAGES_MAX
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES, encode_body, encode_frame
from meta_client.protocol.stamping import stamp_ids
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

pytestmark = pytest.mark.skipif(
    core.core is None, reason="the native core was not compiled: install a C compiler and Python.h, then `make setup`"
)

ONLY = Partition(0, 0)
VIEWS = {topic: TopicView(topic, (ONLY,), {0: BrokerUrl("b", 1)}, (ONLY,)) for topic in ("orders", "bills")}
SMALL = BatchingConfig(batch_bytes=300, linger_s=1.0, delivery_timeout_s=10.0, buffer_bytes_max=1500)

TRACE = "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NEARLY = (TRACE, f"key\x1f{TRACE}", f"key{TRACE}", TRACE[:-1], TRACE[:-1] + "\u00e9", "traceparent=" + "\u00e9" * 55)
ATTRIBUTES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(NEARLY)

Engine = SendingEngine[SendHandle]
Add = QuickAdd[SendHandle]


def opened(config: BatchingConfig = SMALL, locked: Callable[[], bool] | None = None) -> tuple[Engine, Add]:
    """Return an engine with an open, empty batch of `orders`, and its native way to add."""
    engine = Engine(config, "me", SendHandle)
    add = engine.quick_add(locked)
    assert add is not None
    engine.open_batch(0.0, VIEWS["orders"], None)
    return engine, add


def contents(engine: Engine) -> Any:
    batches = [(key, batch.bytes, batch.bodies, batch.flags) for key, batch in engine._open.items()]
    queued = [
        (batch.number, batch.bytes, batch.bodies)
        for queue in engine._queues._queues.values()
        for batch in queue.waiting
    ]
    sealed = [(batch.number, batch.bytes, batch.bodies) for batch in engine._sealed]
    return engine.bytes, sealed, engine.has_full, batches, queued


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.sampled_from(["orders", "bills"]), st.integers(0, 320)),
        st.tuples(st.just("named"), st.sampled_from(["orders", "bills"]), st.integers(0, 320)),
        st.tuples(st.just("run"), st.sampled_from(["orders", "bills"]), st.integers(1, 60)),
        st.tuples(st.just("seal"), st.just("orders"), st.just(0)),
        st.tuples(st.just("fail"), st.just("orders"), st.just(0)),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_any_messages_gather_as_by_python_alone(steps: list[tuple[str, str, int]]) -> None:
    """Two engines take the same steps, one with the core asked first: they are equal after each."""
    lock = threading.Lock()
    native, python = Engine(SMALL, "me", SendHandle), Engine(SMALL, "me", SendHandle)
    first = native.quick_add(lock.locked)
    assert first is not None

    def add(engine: Engine, topic: str, wanted: Partition | None, flag: int, body: bytes) -> tuple[int, int] | None:
        handle = first(topic, body, wanted, flag) if engine is native else None
        handle = handle or engine.maybe_add(topic, wanted, flag, body)
        if handle is None and not engine.must_wait(topic, HEADER_BYTES + len(body)):
            handle = engine.add_first(0.0, VIEWS[topic], wanted, flag, body)
        return None if handle is None else (handle._index, len(handle._batch.bodies))

    for number, (step, topic, size) in enumerate(steps):
        body = bytes([number]) * size
        outcomes = []
        for engine in (native, python):
            match step:
                case "plain" | "named":
                    outcomes.append(add(engine, topic, ONLY if step == "named" else None, size & 3, body))
                case "run":
                    part = engine.maybe_add_run(topic, None, MessageRun([body[:50]] * 5, [0] * 5), 0)
                    outcomes.append(None if part is None else (part.first, len(part.indexes)))
                case "seal":
                    engine.seal_all()
                case "fail":
                    engine.close()
                    engine._is_closing = False
        assert outcomes[:1] == outcomes[1:]
        assert contents(native) == contents(python)


def test_a_plain_message_that_fits_is_added() -> None:
    engine, add = opened()
    handle = add("orders", b"first")
    assert isinstance(handle, SendHandle)
    assert add("orders", b"") is not None
    (batch,) = engine._open.values()
    assert (handle._batch, handle._index) == (batch, 0)
    assert (batch.bodies, batch.flags, batch.bytes) == ([b"first", b""], [0, 0], 2 * HEADER_BYTES + 5)
    assert engine.bytes == batch.bytes


class Text(str):
    """Compares as it likes."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("asked")


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        ("bills", b"no batch is open"),
        ("orders", bytearray(b"x")),
        ("orders", memoryview(b"x")),
        ("orders", "text"),
        ("orders", None),
        (None, b"x"),
        (b"orders", b"x"),
        (Text("orders"), b"x"),
        ([], b"x"),
        ("\ud800", b"x"),
        ("orders", b"x" * (300 - HEADER_BYTES)),  # fills the batch
        ("orders", b"x" * 301),
    ],
)
def test_whatever_else_is_left_to_python_without_effect(topic: Any, body: Any) -> None:
    engine, add = opened()
    before = contents(engine)
    assert add(topic, body) is None
    assert contents(engine) == before


def test_a_named_partition_has_a_batch_of_its_own_and_a_flag_goes_along() -> None:
    engine, add = opened()
    assert add("orders", b"x", ONLY) is None
    engine.open_batch(0.0, VIEWS["orders"], ONLY)
    assert add("orders", b"x", Partition(0, 0), 1) is not None
    assert add("orders", b"y", None, 3) is not None
    assert [(key, batch.bodies, batch.flags) for key, batch in engine._open.items()] == [
        (("orders", None), [b"y"], [3]),
        (("orders", ONLY), [b"x"], [1]),
    ]


@pytest.mark.parametrize("wanted", ["0-0", 7, Partition(0, 1)], ids=repr)
def test_a_partition_without_an_open_batch_is_left_to_python(wanted: Any) -> None:
    engine, add = opened()
    before = contents(engine)
    assert add("orders", b"x", wanted) is None
    assert contents(engine) == before


@pytest.mark.parametrize("flag", ["1", None, True])
def test_a_flag_that_is_no_int_is_left_to_python(flag: Any) -> None:
    engine, add = opened()
    before = contents(engine)
    assert add("orders", b"x", None, flag) is None
    with pytest.raises(TypeError, match="unhashable"):
        add("orders", b"x", cast("Partition", []))
    assert contents(engine) == before


@given(payload=st.binary(max_size=40), attribute=ATTRIBUTES)
def test_an_attribute_goes_before_the_payload(payload: bytes, attribute: str) -> None:
    engine, add = opened(BatchingConfig())
    assert add("orders", payload, None, 0, attribute) is not None
    (batch,) = engine._open.values()
    assert (batch.flags[0], batch.bodies[0]) == encode_body(payload, attribute)
    assert batch.bytes == engine.bytes == HEADER_BYTES + len(batch.bodies[0])


@pytest.mark.parametrize(
    "attribute",
    [b"key", 7, Text("key"), "\ud800", "x" * DATA_BYTES_MAX],
    ids=["bytes", "int", "subclass", "surrogate", "long"],
)
def test_an_attribute_that_python_must_judge_is_left_to_it(attribute: Any) -> None:
    engine, add = opened(BatchingConfig(batch_bytes=4 * 2**20))
    before = contents(engine)
    assert add("orders", b"x", None, 0, attribute) is None
    assert contents(engine) == before
    assert add("orders", b"x", None, 0, "k" * (DATA_BYTES_MAX - 5)) is not None


def test_a_message_too_long_for_consumers_is_left_to_python() -> None:
    _, add = opened(BatchingConfig(batch_bytes=4 * 2**20))
    assert add("orders", b"x" * (DATA_BYTES_MAX + 1)) is None
    assert add("orders", b"x" * DATA_BYTES_MAX) is not None


def test_a_full_buffer_is_left_to_python() -> None:
    engine, add = opened()
    engine.bytes = SMALL.buffer_bytes_max - HEADER_BYTES - 1
    assert add("orders", b"xx") is None
    assert add("orders", b"x") is not None
    assert engine.bytes == SMALL.buffer_bytes_max


def test_the_last_message_of_a_batch_is_left_to_python() -> None:
    engine, add = opened(BatchingConfig())
    for _ in range(BATCH_MESSAGES_MAX - 1):
        assert add("orders", b"") is not None
    assert add("orders", b"") is None
    assert engine.maybe_add("orders", None, 0, b"") is not None
    assert engine.has_full


def test_nothing_is_added_while_the_lock_is_held() -> None:
    lock = threading.Lock()
    engine, add = opened(locked=lock.locked)
    before = contents(engine)
    with lock:
        assert add("orders", b"x") is None
        assert contents(engine) == before
    assert add("orders", b"x") is not None


@pytest.mark.parametrize("arguments", [(), ("orders",), ("orders", b"x", None, 0, None, 0)])
def test_another_number_of_arguments_raises(arguments: tuple[Any, ...]) -> None:
    _, add = opened()
    with pytest.raises(TypeError, match="add takes a topic, a body"):
        cast("Callable[..., object]", add)(*arguments)


def test_it_is_made_only_of_what_it_can_use() -> None:
    engine, _ = opened()
    intake, limits = core.core.Intake, (HEADER_BYTES, DATA_BYTES_MAX, BATCH_MESSAGES_MAX, 300, 1500)
    with pytest.raises(TypeError, match="lock's own method"):
        intake(lambda: False, engine, engine._open, SendHandle, *limits)
    with pytest.raises(TypeError, match="dict"):
        intake(None, engine, [], SendHandle, *limits)
    for wrong in ((-1, DATA_BYTES_MAX), (HEADER_BYTES, -1), (HEADER_BYTES, 2**31)):
        with pytest.raises(ValueError, match="31-bit"):
            intake(None, engine, engine._open, SendHandle, *wrong, *limits[2:])


class Batch:
    """A batch with anything in it."""

    def __init__(self, **named: object) -> None:
        self.__dict__ |= {"bodies": [], "flags": [], "bytes": 0} | named


@pytest.mark.parametrize(
    ("batch", "total"),
    [
        (object(), 0),
        (Batch(bodies=()), 0),
        (Batch(flags=None), 0),
        (Batch(bytes=-1), 0),
        (Batch(bytes=2**70), 0),
        (Batch(bytes="1"), 0),
        (Batch(), None),
        (Batch(), 2**70),
    ],
    ids=["no batch", "bodies", "flags", "negative", "huge", "text", "no total", "huge total"],
)
def test_a_state_that_can_not_be_raises_without_effect(batch: Any, total: Any) -> None:
    engine, add = opened()
    engine._open["orders", None] = batch
    engine.bytes = total
    with pytest.raises((TypeError, AttributeError, OverflowError)):
        add("orders", b"x")
    assert engine.bytes == total
    assert getattr(batch, "bodies", []) in ([], ())


def test_a_batch_that_changes_while_its_handle_is_made_is_left_to_python() -> None:
    """The handle may be made by anything: what was looked at before does not count after."""
    changes: list[Callable[[], object]] = []

    def make(batch: ProducerBatch, index: int) -> SendHandle:
        changes.pop()()
        return SendHandle(batch, index)

    engine = Engine(SMALL, "me", make)
    add = engine.quick_add(None)
    assert add is not None
    engine.open_batch(0.0, VIEWS["orders"], None)
    (batch,) = engine._open.values()
    changes += [engine.seal_all, lambda: batch.bodies.append(b"another's")]
    assert add("orders", b"x") is None  # another took the place
    assert (batch.bodies, engine.bytes) == ([b"another's"], 0)
    batch.bodies.clear()
    assert add("orders", b"x") is None  # it is sealed
    assert (batch.bodies, engine.bytes) == ([], 0)
    engine.open_batch(0.0, VIEWS["orders"], None)
    changes.append(lambda: add("bills", b"x"))  # another thread's topic
    assert add("orders", b"x") is not None
    changes.append(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        add("orders", b"y")
    assert engine.bytes == HEADER_BYTES + 1


def test_it_keeps_no_reference_to_a_message_nor_itself() -> None:
    engine, add = opened(BatchingConfig())
    body, topic = b"a body " * 9, "".join(["or", "ders"])
    held = sys.getrefcount(body)
    (batch,) = engine._open.values()
    for _ in range(1000):
        assert add(topic, body) is not None
        assert add("bills", body) is None
    assert sys.getrefcount(body) == held + 1000
    batch.bodies.clear()
    assert sys.getrefcount(body) == held
    assert sys.getrefcount(batch) < 10
    alive = weakref.ref(engine)
    engine.itself = add  # type: ignore[attr-defined]  # a circle through the core
    del engine, add, batch
    gc.collect()
    assert alive() is None


def test_many_threads_lose_no_message() -> None:
    """Some add through the core, some under the lock, and another seals: each message has a place of its own."""
    lock = threading.Lock()
    engine = Engine(BatchingConfig(batch_bytes=2000, buffer_bytes_max=2**30), "me", SendHandle)
    plain = engine.quick_add(lock.locked)
    assert plain is not None
    handles: list[list[tuple[SendHandle, bytes]]] = [[] for _ in range(6)]
    natively = [0] * 6
    ended = threading.Event()

    def run(number: int) -> None:
        for count in range(5000):
            body = b"%d-%d" % (number, count)
            handle = plain("orders", body) if number % 3 else None
            natively[number] += handle is not None
            if handle is None:
                with lock:
                    handle = engine.maybe_add("orders", None, 0, body) or engine.add_first(
                        0.0, VIEWS["orders"], None, 0, body
                    )
            handles[number].append((handle, body))

    def seal() -> None:
        while not ended.wait(0.001):
            with lock:
                engine.seal_all()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
        sealing = threading.Thread(target=seal)
        for thread in (*threads, sealing):
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        sealing.join()
    finally:
        sys.setswitchinterval(before)
    every = [each for some in handles for each in some]
    assert len({(id(handle._batch), handle._index) for handle, _ in every}) == 30_000
    assert all(handle._batch.bodies[handle._index] is body for handle, body in every)
    batches = {id(handle._batch): handle._batch for handle, _ in every}.values()
    assert all(batch.bytes == sum(HEADER_BYTES + len(body) for body in batch.bodies) for batch in batches)
    assert all(batch.flags == [0] * len(batch.bodies) for batch in batches)
    assert engine.bytes == sum(batch.bytes for batch in batches)
    assert sum(natively) > 0


PARTS = st.lists(
    st.one_of(
        st.tuples(st.binary(max_size=60), st.sampled_from([0, 0, 0, 0, 2]), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(ATTRIBUTES.map(lambda text: encode_body(b"payload", text)[1]), st.just(1), st.integers(0, 9)),
        st.tuples(st.binary(max_size=12).map(lambda junk: b"\0\0\0\5" + junk), st.just(1), st.integers(0, 9)),
        st.tuples(st.binary(max_size=12), st.just(1), st.integers(0, 9)),
    ),
    max_size=90,
)


@given(parts=PARTS, alike=st.booleans(), offset=st.sampled_from([0, 2**40, 2**63 - 2000, 2**63, 2**70]), data=st.data())
def test_any_answer_decodes_as_by_python_alone(
    parts: list[tuple[bytes, int, int]], alike: bool, offset: int, data: st.DataObject
) -> None:
    """Messages of any lengths, flags and ids, a bit flipped or not, cut anywhere; and after offsets of 63 bits."""
    body = bytearray(b"".join(encode_frame(number, flag, b"" if alike else text) for text, flag, number in parts))
    if body and data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    body = body[: data.draw(st.integers(0, len(body)))]

    def found() -> Any:
        batch, broken = decode_batch("orders", ONLY, offset, memoryview(body))
        messages = None if batch is None else [(type(message), *message) for message in batch.messages]
        places = None if batch is None else (batch.offset, batch.next_offset, len(batch), list(batch.offsets))
        return messages, places, None if broken is None else (broken.offset, str(broken), broken.next_offset)

    native = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "core", None)
        assert found() == native


@given(parts=PARTS, first=st.integers(0, 2**51 - 1).map(lambda high: high << 12), cut=st.integers(0, 9), data=st.data())
def test_any_batch_is_stamped_as_by_python_alone(
    parts: list[tuple[bytes, int, int]], first: int, cut: int, data: st.DataObject
) -> None:
    whole = bytearray(b"".join(encode_frame(number, flag, text) for text, flag, number in parts)) or bytearray(b"!")
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    count, end = max(1, len(parts) - cut // 8), len(whole) - cut // 7

    def stamped() -> Any:
        frames = bytearray(whole)
        try:
            return stamp_ids(frames, count, first, 50, end), frames
        except ValueError as error:
            return str(error)

    native = stamped()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "core", None)
        python = stamped()
    assert native == python


def refuse(data: object) -> int:
    raise ZeroDivisionError


FRAME = encode_frame(7, 0, b"hello")
LIMITS = (0, 0, 10, DATA_BYTES_MAX)  # base, position, count, bytes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((int, "t", ONLY, FRAME, *LIMITS, crc32), TypeError),
        ((Text, "t", ONLY, FRAME, *LIMITS, crc32), TypeError),
        ((ReceivedMessage, "t", ONLY, "text", *LIMITS, crc32), TypeError),
        ((ReceivedMessage, "t", ONLY, FRAME, 0, -1, 10, 10, crc32), ValueError),
        ((ReceivedMessage, "t", ONLY, FRAME, 0, len(FRAME) + 1, 10, 10, crc32), ValueError),
        ((ReceivedMessage, "t", ONLY, FRAME, 0, 0, 10, -1, crc32), ValueError),
        ((ReceivedMessage, "t", ONLY, FRAME, 0.0, 0, 10, 10, crc32), TypeError),
        ((ReceivedMessage, "t", ONLY, FRAME, *LIMITS, refuse), ZeroDivisionError),
        ((ReceivedMessage, "t", ONLY, FRAME, *LIMITS, str), TypeError),
        ((ReceivedMessage, "t", ONLY, FRAME, *LIMITS, lambda data: -1), OverflowError),
        ((), TypeError),
    ],
)
def test_decoding_what_is_no_answer_raises(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        core.core.plain_messages(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((FRAME, len(FRAME), 1, 0, 10, 0x4D51, crc32), TypeError),  # can't be written to
        ((bytearray(FRAME), len(FRAME) + 1, 1, 0, 10, 0x4D51, crc32), ValueError),
        ((bytearray(FRAME), -1, 1, 0, 10, 0x4D51, crc32), ValueError),
        ((bytearray(FRAME), len(FRAME), -1, 0, 10, 0x4D51, crc32), ValueError),
        ((bytearray(FRAME), len(FRAME), 1, 2**63 - 1, 10, 0x4D51, crc32), ValueError),
        ((bytearray(FRAME), len(FRAME), 1, 0, -1, 0x4D51, crc32), ValueError),
        ((bytearray(FRAME), len(FRAME), 1, 0, 10, 0x4D51, refuse), ZeroDivisionError),
    ],
)
def test_stamping_what_is_no_batch_raises_without_effect(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    before = bytes(arguments[0])
    with pytest.raises(error):
        core.core.stamp_frames(*arguments)
    assert arguments[0] == before


class Received(ReceivedMessage):
    """A type that no message elsewhere refers to: what other tests left behind goes when it goes."""

    __slots__ = ()


def test_decoding_keeps_no_reference() -> None:
    body, topic, partition = bytearray(FRAME * 100), "".join(["or", "ders"]), Partition(3, 4)
    held = [sys.getrefcount(it) for it in (topic, partition, Received)]
    for _ in range(50):
        found, end = core.core.plain_messages(Received, topic, partition, body, 0, 0, 100, 10, crc32)
        assert (len(found), end) == (100, len(body))
        assert found[0] == ReceivedMessage(topic, partition, 0, 7, 0, None, b"hello", len(FRAME))
        payload = found[3].payload
        assert sys.getrefcount(payload) == 3  # the message's, ours, the call's
        del found
        core.core.plain_messages(Received, topic, partition, body, 0, 0, 100, 4, None)
        core.core.stamp_frames(bytearray(body), len(body), 100, 7 << 12, 10, 0x4D51, crc32)
        assert core.core.alike_frames(body, 0, 8, 200, 10, crc32) == 100
    body.append(0)  # no view of it is left
    assert [sys.getrefcount(it) for it in (topic, partition, Received)] == held


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("text", 0, 8, 10, 10, crc32), TypeError),
        ((FRAME, -1, 8, 10, 10, crc32), ValueError),
        ((FRAME, len(FRAME) + 1, 8, 10, 10, crc32), ValueError),
        ((FRAME, 0, 8, 10, -1, crc32), ValueError),
        ((FRAME, 0, 0, 10, 10, refuse), ZeroDivisionError),
        ((FRAME, 0, 0, 10, 10, str), TypeError),
        ((), TypeError),
    ],
)
def test_counting_in_what_is_no_answer_raises(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        core.core.alike_frames(*arguments)


BROKEN = bytearray(FRAME)
BROKEN[-1] ^= 1
COMPRESSED = encode_frame(7, 2, b"hello")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (FRAME * 100, 100),
        (FRAME * 8, 8),
        (FRAME * 7, 0),
        (FRAME * 8 + FRAME[:-1], 8),
        (FRAME * 9 + BROKEN + FRAME * 9, 9),
        (FRAME * 7 + BROKEN + FRAME * 9, 0),
        (FRAME * 9 + COMPRESSED + FRAME * 9, 9),
        (FRAME * 9 + encode_frame(7, 0, b"hallo!") * 9, 9),
        (b"", 0),
        (FRAME[:19], 0),
    ],
)
def test_messages_of_one_length_are_counted_up_to_another(body: bytes, found: int) -> None:
    assert core.core.alike_frames(body, 0, 8, len(body), 10, crc32) == found
    assert core.core.alike_frames(b"!" + body, 1, 8, len(body), 10, crc32) == found
    assert core.core.alike_frames(body, 0, 8, 8, 10, crc32) == min(found, 8)
    assert core.core.alike_frames(body, 0, 8, len(body), 4, crc32) == 0


def test_the_collector_passes_over_messages_that_can_be_part_of_no_cycle() -> None:
    """Else it goes through all of them as they are made; one that could be part of a cycle it must know."""
    body = encode_frame(7, 0, b"payload") * 3

    def messages_of(topic: Any, partition: Any) -> list[ReceivedMessage]:
        found: list[ReceivedMessage]
        found, _ = core.core.plain_messages(ReceivedMessage, topic, partition, body, 0, 0, 3, DATA_BYTES_MAX, crc32)
        return found

    assert not any(map(gc.is_tracked, messages_of("orders", ONLY)))
    assert all(map(gc.is_tracked, messages_of(Text("orders"), ONLY)))
    cycle: list[Any] = []
    cycle += messages_of("orders", cycle)
    assert all(map(gc.is_tracked, cycle))
    cycle[0].partition.append(held := Batch())
    alive = weakref.ref(held)
    del cycle, held
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("call", [
    lambda crc: core.core.alike_frames(FRAME * 9, 0, 8, 9, 10, crc),
    lambda crc: core.core.plain_messages(ReceivedMessage, "t", ONLY, FRAME * 9, 0, 0, 9, 10, crc),
    lambda crc: core.core.stamp_frames(bytearray(FRAME * 9), len(FRAME) * 9, 9, 7 << 12, 10, 0x4D51, crc),
], ids=["alike", "plain", "stamp"])  # fmt: skip
def test_a_checksum_reads_the_data_of_each_message_and_may_keep_none(call: Callable[[Any], Any]) -> None:
    kept: list[Any] = []

    def crc(data: Any) -> int:
        with memoryview(data) as view:
            assert view.readonly
            assert bytes(view) == b"hello"
        kept.append(data)
        return crc32(data)

    call(crc)
    assert len(kept) == 9
    assert {bytes(memoryview(data)) for data in kept} == {b""}
