"""Filters at the broker: what a get answers through one, and that a bad one troubles its own group only (spec 4.8)."""

import os
import select
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_broker.filters.emulation import Deliver, FrameVerdict, Skip, choose_reply
from meta_client.protocol.messages import iter_frames
from meta_client.protocol.requests import Fetch, OffsetQuery, Version
from meta_client.protocol.responses import Data, Result, Value
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.filters import NAMES, install_filters
from tests.fixtures.scrape import Scrape, admin_url
from tests.fixtures.wire import WireClient

SECTION = "\n[filters.orders]\n" + "".join(f'{name} = "test-{name}"\n' for name in (*NAMES, "unknown"))
WAIT_S = 60.0


def configured(seconds_max: float = WAIT_S, **broker: object) -> str:
    """The configuration of a broker with every filter, each of which may take *seconds_max* for a get."""
    keys = {"filter_seconds_max": seconds_max} | broker
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return CONFIG.replace("[broker]\n", f"[broker]\n{lines}") + SECTION


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install_filters(tmp_path / "site", monkeypatch)


def read(client: WireClient, group: str, bytes_max: int = 1000) -> list[bytes]:
    """Return what a genuine consumer of *group* gets from orders-0, following every 301. Never half a message."""
    offset, got = 0, []
    for _ in range(1000):
        client.socket.sendall(b"get orders %s 0 %d %d 7\r\n" % (group.encode(), offset, bytes_max))
        answer = client.receive()
        if isinstance(answer, Value):
            frames = list(iter_frames(answer.body, offset))
            assert frames, "no whole message"
            got += [message.payload for _, _, message in frames]
            offset = frames[-1][1]
            continue
        assert isinstance(answer, Result)
        if answer.status == 404:
            return got
        assert answer.status == 301, answer.text
        assert int(answer.message) > offset
        offset = int(answer.message)
    raise AssertionError("no end")


def fill(client: WireClient, count: int = 10) -> list[bytes]:
    bodies = [b"%d:%s" % (number, b"x" * (number * 7 % 50)) for number in range(count)]
    for body in bodies:
        client.put("orders", 0, body)
    return bodies


@pytest.mark.parametrize("bytes_max", [100, 1000, 100_000])
def test_a_group_gets_what_its_filter_accepts_and_others_get_everything(
    tmp_path: Path, installed: Path, bytes_max: int
) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=configured() + "[admin]\nport = 0\n") as broker,
        WireClient(broker.port) as client,
    ):
        bodies = fill(client)
        assert read(client, "even", bytes_max) == bodies[::2]
        assert Scrape(admin_url(broker)).get("metaq_topic_messages_out_total", topic="orders") == len(bodies[::2])
        assert read(client, "raising", bytes_max) == [body for body in bodies if not body.startswith(b"3:")]
        assert read(client, "nothing", bytes_max) == read(client, "Attributed", bytes_max) == []
        assert read(client, "everybody", bytes_max) == bodies
    assert 'filter raised, messages rejected name=test-raising group=raising error="KeyError' in broker.log
    assert "a filter may print" in broker.log


def test_attributes_reach_the_filter_and_a_fetch_is_filtered_too(tmp_path: Path, installed: Path) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=configured()) as broker,
        WireClient(broker.port) as client,
    ):
        body = len(b"Attributed").to_bytes(4, "big") + b"Attributed" + b"hello"
        client.put("orders", 0, b"plain")
        client.socket.sendall(b"put orders 0 %d 1 -1 7\r\n" % len(body) + body)
        assert getattr(client.receive(), "status", None) == 200
        client.put("orders", 0, b"plain")
        assert read(client, "Attributed") == [b"hello"]
        first, second = 25, 25 + 20 + len(body)
        fetch = Fetch("orders", "Attributed", 0, 0, 1000, 1, 0, 1)
        assert client.ask(fetch) == Result(301, b"%d filtered" % first, 1)
        answer = client.ask(Fetch("orders", "Attributed", 0, first, 1000, 1, 0, 2))
        assert isinstance(answer, Data)
        assert (len(answer.body), answer.log_end) == (second - first, second + 25)
        assert client.ask(OffsetQuery("orders", "Attributed", 0, 0, 3)) == Result(200, b"0", 3)
        # One that waits is filtered when there is something, too.
        client.send(Fetch("orders", "Attributed", 0, second + 25, 1000, 1, 30_000, 4))
        with WireClient(broker.port) as other:
            other.put("orders", 0, b"plain")
        assert client.receive() == Result(301, b"%d filtered" % (second + 50), 4)


def test_a_message_that_is_too_long_for_the_request_is_cut_off_as_ever(tmp_path: Path, installed: Path) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=configured()) as broker,
        WireClient(broker.port) as client,
    ):
        client.put("orders", 0, b"1:" + bytes(500))
        client.socket.sendall(b"get orders nothing 0 0 100 7\r\n")
        assert isinstance(answer := client.receive(), Value)
        assert len(answer.body) == 100


def test_a_bad_filter_troubles_its_own_group_only_and_says_so(tmp_path: Path, installed: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=configured(3.0)) as broker, WireClient(broker.port) as client:
        bodies = fill(client)
        waiting = [WireClient(broker.port) for _ in range(3)]
        for number, group in enumerate(("endless", "dying", "endless")):
            waiting[number].socket.sendall(b"get orders %s 0 0 1000 %d\r\n" % (group.encode(), number))
        answered = 0
        while not has_answer(waiting[0]):  # it turns in circles
            client.put("invoices", 0, b"x")
            answered += 1
        assert answered > 10  # one, if they had to wait for it
        assert read(client, "even") == bodies[::2]
        answers = [one.receive() for one in waiting]
        for one in waiting:
            one.close()
        assert all(isinstance(answer, Result) and answer.status == 500 for answer in answers)
        texts = [answer.text for answer in answers if isinstance(answer, Result)]
        assert (
            texts[0]
            == texts[2]
            == (
                "group endless of topic orders: filter 'test-endless' took longer than filter_seconds_max 3: "
                "mend or remove it"
            )
        )
        assert "filter 'test-dying' ended: the broker's log shows" in texts[1]
        for group, text in {
            "unknown": "no installed package has an entry point 'test-unknown' in the group metaq.filters",
            "absent": "AttributeError: module 'shop_filters' has no attribute 'absent'",
            "not_callable": "TypeError: shop_filters:not_callable is neither a function accept(group, message)",
        }.items():
            for _ in range(2):
                client.socket.sendall(b"get orders %s 0 0 1000 7\r\n" % group.encode())
                assert isinstance(answer := client.receive(), Result)
                assert answer.status == 500
                assert text in answer.text
            assert broker.log.count(text) == 1  # a state is logged once
        assert read(client, "everybody") == bodies


def test_what_waits_for_a_filter_is_judged_by_what_is_there_when_its_turn_comes(
    tmp_path: Path, installed: Path
) -> None:
    config = configured(6.0, requests_in_flight_max=1)  # time enough to delete the topic
    with (
        running_broker(tmp_path / "broker", None, config=config) as broker,
        WireClient(broker.port) as client,
        WireClient(broker.port) as first,
        WireClient(broker.port) as second,
    ):
        fill(client)
        for asked, one in enumerate((first, second), 1):
            one.socket.sendall(b"get orders endless 0 0 1000 1\r\n")
            while f"cmd_get {asked}" not in client.stats():  # another connection's could overtake it
                time.sleep(0.005)
        client.socket.sendall(b"topic delete orders 2\r\n")
        assert getattr(client.receive(), "status", None) == 200
        assert getattr(first.receive(), "status", None) == 500
        assert second.receive() == Result(404, b"The topic `orders` in partition `0` is not exists", 1)
        assert isinstance(second.ask(Version(3)), Result)  # the one in flight was answered once


def test_a_goodbye_waits_for_the_filter(tmp_path: Path, installed: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=configured(4.0)) as broker:
        with WireClient(broker.port) as client:
            fill(client)
            client.socket.sendall(b"get orders even 0 0 1000 1\r\nget orders endless 0 0 1000 2\r\nquit\r\n")
            answers = {answer.opaque: answer for answer in (client.receive(), client.receive())}
            with pytest.raises(ConnectionError):
                client.receive()
        assert isinstance(first := answers[1], Value)
        assert first.body
        assert isinstance(second := answers[2], Result)
        assert second.status == 500


def test_filters_are_reloaded_and_their_processes_end_with_the_broker(tmp_path: Path, installed: Path) -> None:
    config = CONFIG.replace("[broker]\n", f"[broker]\nfilter_seconds_max = {WAIT_S}\n") + "\n[filters.orders]\n"
    with running_broker(tmp_path / "broker", None, config=config + "clerks = 'test-nothing'\n") as broker:
        with WireClient(broker.port) as client:
            bodies = fill(client, 4)
            assert read(client, "clerks") == []
            broker.config_path.write_text(config + "clerks = 'test-even'\n")
            broker.hang_up()
            wait_for(broker, "reloaded file=")
            assert read(client, "clerks") == bodies[::2]
        workers = [os.pidfd_open(pid) for pid in children(broker.pid)]
        assert len(workers) == 2
        assert broker.stop() == 0
        assert has_ended(*workers, within_s=0.0)
        broker.start()
        with WireClient(broker.port) as client:
            assert read(client, "clerks") == bodies[::2]
        (worker,) = children(broker.pid)
        ending = os.pidfd_open(worker)
        broker.kill()
        assert has_ended(ending, within_s=WAIT_S), "it outlived its broker"


def has_ended(*processes: int, within_s: float) -> bool:
    """Return whether all of *processes*, their file descriptors, end in that time; closes them."""
    ended = [bool(select.select([process], [], [], within_s)[0]) for process in processes]
    for process in processes:
        os.close(process)
    return all(ended)


def has_answer(client: WireClient) -> bool:
    """Return whether there is something to receive."""
    return bool(select.select([client.socket], [], [], 0)[0])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(broker: BrokerProcess, text: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while text not in broker.log:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=20), st.integers(1, 200))
def test_following_the_answers_reads_exactly_what_is_accepted(messages: list[tuple[int, bool]], slice_max: int) -> None:
    ends, end = [], 0
    for length, is_accepted in messages:
        end += length
        ends.append(FrameVerdict(end, is_accepted))
    offset, got, asked = 0, [], slice_max
    while offset < end:
        size = min(asked, end - offset)
        whole = [FrameVerdict(v.end - offset, v.is_accepted) for v in ends if offset < v.end <= offset + size]
        match choose_reply(whole, size):
            case Skip(skipped):
                assert whole
                offset += skipped
            case Deliver(returned):
                if not whole:  # nothing complete: a genuine client asks for more
                    assert returned == size
                    asked *= 2
                    continue
                got += [v.end for v in ends if offset < v.end <= offset + returned]
                assert offset + returned in {v.end for v in ends}, "a run ends with a message"
                offset += returned
    assert got == [v.end for v in ends if v.is_accepted]
