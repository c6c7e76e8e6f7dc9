"""The table of spec 8.5 and 8.6, one outcome at a time."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.consumer.fetch_request import FRAME_BYTES_MAX, FetchRequest
from meta_client.consumer.position import milliseconds
from meta_client.protocol.messages import encode_frame
from zk.tree.nodes import Partition


def request(bytes_max: int = 1024) -> FetchRequest:
    return FetchRequest("orders", Partition(0, 3), 100, bytes_max, backoff_s_max=5.0)


def test_nothing_backs_off_a_tenth_longer_each_time_up_to_the_maximum() -> None:
    it = request()
    rests = []
    for _ in range(12):
        it.found_nothing(is_at_end=True)
        rests.append(it.backoff_s)
    assert rests == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.0, 5.0]
    assert it.is_at_end


def test_data_ends_the_backoff_and_every_count() -> None:
    it = request()
    it.found_nothing(is_at_end=True)
    it.failed(100)
    it.delivered(158)
    assert (it.offset, it.backoff_s, it.is_at_end) == (158, 0.0, False)


def test_a_move_forward_goes_on_from_there_at_once_and_any_other_after_a_rest() -> None:
    it = request()
    it.found_nothing(is_at_end=True)
    it.moved(4096)
    assert (it.offset, it.backoff_s) == (4096, 0.0)
    it.moved(4096)
    assert (it.offset, it.backoff_s) == (4096, 0.5)
    it.moved(50)
    assert (it.offset, it.backoff_s) == (50, 1.0)


def test_a_failed_delivery_goes_on_at_what_failed_and_later_each_time() -> None:
    it = request()
    it.failed(100)
    it.failed(100)
    assert (it.offset, it.backoff_s) == (100, 1.0)
    it.failed(158)
    assert (it.offset, it.backoff_s) == (158, 0.5)
    it.failed(158, backoff_s_min=30)
    assert (it.offset, it.backoff_s) == (158, 30)


def test_a_seek_is_made_at_once() -> None:
    it = request()
    it.found_nothing(is_at_end=True)
    it.sought(7, 7)
    assert (it.offset, it.backoff_s, it.is_at_end) == (7, 0.0, False)


@pytest.mark.scenario("A15")
@given(st.integers(1, 200), st.integers(0, 100_000))
def test_a_message_that_is_too_large_is_asked_for_whole_at_once(bytes_max: int, size: int) -> None:
    frame = encode_frame(7, 0, bytes(size))
    it = request(bytes_max)
    rounds = 0
    while len(frame) > it.bytes_max:
        it.cut_off(frame[: it.ask_for()])
        assert it.backoff_s == 0.0
        rounds += 1
    assert rounds <= 2  # one to see the length, one to ask for it
    assert it.offset == 100


def test_a_message_that_is_too_large_for_a_waiting_fetch_is_asked_for_at_once() -> None:
    frame = encode_frame(7, 0, bytes(900))
    it = request()
    it.cut_off(frame[: it.ask_for(100)])
    assert (it.ask_for(), it.backoff_s, it.is_at_end) == (1024, 0.0, False)


def test_the_end_is_waited_for_at_the_broker_unless_it_does_not_wait() -> None:
    it = request()
    it.delivered(158, log_end=200)
    assert not it.is_at_end
    it.delivered(200, log_end=200)
    assert (it.is_at_end, it.backoff_s) == (True, 0.0)
    it.reached_end(is_early=True)
    assert (it.is_at_end, it.backoff_s) == (True, 0.5)
    it.reached_end(is_early=False)
    assert (it.is_at_end, it.backoff_s) == (True, 0.0)


def test_a_broker_that_sends_less_than_asked_for_is_not_pestered() -> None:
    frame = encode_frame(7, 0, bytes(4000))
    it = request()
    it.cut_off(frame[: it.ask_for()])
    assert (it.bytes_max, it.backoff_s) == (4020, 0.0)
    it.ask_for()
    it.cut_off(frame[:2048])  # its maximum transfer size
    it.cut_off(frame[:2048])
    assert (it.bytes_max, it.backoff_s) == (4020, 1.0)


def test_it_never_asks_for_more_than_a_message_can_be() -> None:
    it = request()
    it.ask_for()
    it.cut_off(b"\x7f\xff\xff\xff" + bytes(1000))
    assert it.bytes_max == 1024
    assert it.backoff_s > 0
    it.cut_off(b"\xff\xff\xff\xff" + bytes(1000))
    assert it.bytes_max == 1024
    assert FRAME_BYTES_MAX == 2_097_172


@pytest.mark.parametrize(("answers", "expected"), [([3000], 4096), ([1000], 2048), ([10] * 5, 1024)])
def test_it_asks_for_less_again_by_halves(answers: list[int], expected: int) -> None:
    it = request()
    it.bytes_max = 4096
    for body_bytes in answers:
        it.shrink(body_bytes)
    assert it.bytes_max == expected


def test_the_first_and_the_last_time_have_milliseconds() -> None:
    """timestamp() raises for some local times of the first and the last year."""
    assert milliseconds(datetime.min) == milliseconds(datetime(1968, 2, 29)) == 0
    assert milliseconds(datetime.max) > milliseconds(datetime(9000, 1, 1, tzinfo=UTC)) == 221845392000000
