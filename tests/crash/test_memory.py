"""Memory cost of transactions: per branch and per extent, never per byte. In full: `make crash`."""

import os
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.requests import Put, Request, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.peers import MIB, resident_bytes
from tests.fixtures.wire import WireClient

FULL = "METAQ_CRASH_ROUNDS" in os.environ
BRANCHES = 100_000 if FULL else 10_000
SMALL_PUTS = 500_000 if FULL else 50_000
LARGE_PUTS = 2_000 if FULL else 250  # of a megabyte
V = TransactionVerb
# Checkpoints all the time, as CONFIG has them: what they take for a moment counts. Segments that a megabyte fits into.
ROOMY = CONFIG.replace("segment_bytes = 4194304", "segment_bytes = 67108864\ntransaction_timeout_seconds_max = 3600")


def answered(client: WireClient, *requests: Request) -> None:
    """Ask all at once; every answer must be a success."""
    client.send(*requests)
    for _ in requests:
        answer = client.receive()
        assert isinstance(answer, Result)
        assert answer.is_success, answer.text


def key_of(number: int) -> XaKey:
    return XaKey(Xid.of(f"order-{number:08}", "metaq"), "memory")


@pytest.mark.timeout(600)
def test_an_open_branch_costs_two_kilobytes_whatever_else_is_open(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=ROOMY) as broker, WireClient(broker.port) as client:
        before, seen = resident_bytes(broker.pid), []
        for first in range(0, BRANCHES, 1_000):
            keys = [key_of(number) for number in range(first, first + 1_000)]
            answered(client, *(TransactionCommand(key, "s", V.BEGIN, 3600, None, 1) for key in keys))
            answered(client, *(Put("orders", 0, 0, None, key, 2, b"x" * 100) for key in keys))
            answered(client, *(TransactionCommand(key, "s", V.PREPARE, None, None, 3) for key in keys[::2]))
            seen.append(resident_bytes(broker.pid))
        print(f"{(max(seen) - before) / BRANCHES:.0f} bytes a branch, {BRANCHES} of them")
        assert max(seen) - before < 12 * MIB + BRANCHES * 2_000


@pytest.mark.timeout(600)
def test_a_branch_of_many_small_messages_costs_what_places_them(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=ROOMY) as broker, WireClient(broker.port) as client:
        key, before, seen = key_of(1), resident_bytes(broker.pid), []
        client.verb(V.BEGIN, key)
        for _ in range(0, SMALL_PUTS, 1_000):
            answered(client, *(Put("orders", 0, 0, None, key, 2, b"x" * 100) for _ in range(1_000)))
            seen.append(resident_bytes(broker.pid))
        client.verb(V.PREPARE, key)
        seen.append(resident_bytes(broker.pid))
        client.verb(V.COMMIT_TWO_PHASE, key)
        seen.append(resident_bytes(broker.pid))
        assert len(client.read_all("orders", 0, (SMALL_PUTS - 10) * 120)) == 10
        print(f"{(max(seen) - before) / SMALL_PUTS:.0f} bytes a put, {SMALL_PUTS} of them")
        assert max(seen) - before < 24 * MIB + SMALL_PUTS * 400


@pytest.mark.timeout(600)
def test_a_branch_of_any_size_commits_in_little_memory(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=ROOMY) as broker, WireClient(broker.port) as client:
        key, before, seen = key_of(1), resident_bytes(broker.pid), []
        client.verb(V.BEGIN, key)
        for number in range(LARGE_PUTS):
            client.put("orders", number % 4, bytes(MIB - 20), key)
            seen.append(resident_bytes(broker.pid))
        for verb in (V.PREPARE, V.COMMIT_TWO_PHASE):
            client.verb(verb, key)
            seen.append(resident_bytes(broker.pid))
        print(f"{(max(seen) - before) / MIB:.0f} MiB for {LARGE_PUTS}")
        assert max(seen) - before < 120 * MIB
        assert len(client.read_all("orders", 0, (LARGE_PUTS // 4 - 2) * MIB)) >= 2
