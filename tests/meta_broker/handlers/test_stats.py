"""The stats texts, line by line and in their order (spec 12.1, V12), from a real broker."""

import socket
import time
import zlib
from pathlib import Path

import pytest

from journal.records.xid import LocalKey, XaKey, Xid
from meta_client.protocol.requests import OffsetQuery, TransactionVerb
from tests.fixtures.broker import CONFIG, BrokerProcess
from tests.fixtures.wire import Refused, WireClient

FRAME = 20  # bytes before a message's data part


def test_every_text_in_its_order(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client, WireClient(lone_broker.port) as other:
        other.stats()  # so that both connections count
        use(client)
        assert named(client.stats()) == {
            "pid": str(lone_broker.pid),
            "broker_id": "0",
            "port": str(lone_broker.port),
            "slave": "false",
            "curr_connections": "2",
            "cmd_put": "6",
            "cmd_get": "3",
            "cmd_offset": "1",
            "tx_begin": "2",
            "tx_xa_begin": "1",
            "tx_commit": "1",
            "tx_rollback": "1",
            "get_miss": "2",
            "put_failed": "2",
            "total_messages": "4",
            "topics": "2",
            "config_checksum": str(zlib.crc32(CONFIG.encode())),
            "get_unreadable": "0",
            "unreadable_ranges": "0",
            "indexes_rebuilding": "0",
        }
        assert client.stats("topics") == [
            "STATS",
            f"dynamic-x partitions 2 message_count 1 message_bytes {FRAME + 4} "
            "accept_publish true accept_subscribe true",
            f"orders partitions 4 message_count 3 message_bytes {3 * FRAME + 5 + 1 + 2} "
            "accept_publish true accept_subscribe true",
            "dynamic-* *Empty*",
            "invoices *Empty*",
            "meta-test *Empty*",
            "END",
        ]
        assert client.stats("offsets") == [
            "STATS",
            f"dynamic-x part 1 min_offset 0 max_offset {FRAME + 4}",
            f"orders part 0 min_offset 0 max_offset {2 * FRAME + 5 + 2}",
            f"orders part 3 min_offset 0 max_offset {FRAME + 1}",
            "END",
        ]
        kinds = ("put", "get", "offset", "get_miss", "put_failed", "message_size")
        assert client.stats("realtime") == ["STATS", *(f"realtime_{kind} null" for kind in kinds), "END"]
        assert client.stats("reset") == ["STATS", "reset ok", "END"]
        assert [line.split()[0] for line in client.stats("help")] == [
            *(
                "STATS",
                "*EMPTY*",
                "help",
                "topics",
                "replication",
                "journal",
                "offsets",
                "realtime",
                "reset",
                "quotas",
                "config",
                "<topic>",
                "END",
            )
        ]
        assert client.stats("orders") == [
            *("STATS", "orders", "resultCode 0", "partitions 4", "message_count 3"),
            f"bytes {3 * FRAME + 5 + 1 + 2}",
            *(f"topic_realtime_{kind} null" for kind in kinds),
            "END",
        ]
        assert client.stats("invoices")[1:6] == [
            *("invoices", "resultCode 2", "partitions 2", "message_count 0", "bytes 0")
        ]
        assert client.stats("nope")[1:6] == ["nope", "resultCode 1", "partitions 0", "message_count 0", "bytes 0"]


def test_the_journal_on_the_disk(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        client.put("orders", 0, b"hello")
        rows = [line.split() for line in client.stats("journal")[1:-1]]
        found = {kind: words for kind, *words in rows}
        pairs = {kind: words for kind, words in found.items() if kind not in ("checkpoint", "segment")}
        named = {kind: dict(zip(words[::2], words[1::2], strict=True)) for kind, words in pairs.items()}
        end = int(named["journal"]["end"])
        assert 0 < int(named["journal"]["start"]) < int(named["journal"]["high_watermark"]) <= end
        assert named["journal"]["segments"] == "1"
        assert int(named["checkpoints"]["durable_lsn"]) + int(named["checkpoints"]["replay_bytes"]) == end
        assert 0 < int(named["disk"]["free_bytes"]) < int(named["disk"]["size_bytes"])
        assert named["disk"]["refuses_writes"] == "false"
        assert named["retention"] == {"hours": "-", "bytes": "-", "policy": "delete"}
        base, *words = found["segment"]
        segment = dict(zip(words[::2], words[1::2], strict=True))
        assert (base, segment["bytes"]) == ("0", "4194304")
        assert 0 <= time.time() * 1000 - int(segment["first_ms"]) < 600_000


def use(client: WireClient) -> None:
    """Some of everything that is counted."""
    client.put("orders", 0, b"hello")
    client.put("orders", 3, b"x")
    with pytest.raises(Refused):
        client.put("nope", 0, b"")
    client.put("dynamic-x", 1, b"wild")
    local, branch = LocalKey("s", 1), XaKey(Xid.of("g", "b"), "uq")
    client.verb(TransactionVerb.BEGIN, local)
    client.put("orders", 0, b"tx", local)
    client.verb(TransactionVerb.COMMIT_ONE_PHASE, local)
    client.verb(TransactionVerb.BEGIN, branch)
    client.verb(TransactionVerb.ROLLBACK, branch)
    with pytest.raises(Refused):
        client.put("orders", 0, b"late", local)
    client.get("orders", 0, 0)
    client.get("orders", 0, 10_000)
    client.get("orders", 2, 0)
    client.ask(OffsetQuery("orders", "g", 0, 7, client.opaque()))


def named(lines: list[str]) -> dict[str, str]:
    """The broker's own text: names checked with their order, and what changes from run to run taken out."""
    assert (lines[0], lines[-1]) == ("STATS", "END")
    values = dict(line.split(" ", 1) for line in lines[1:-1])
    assert " ".join(values) == (
        "pid broker_id port uptime version slave curr_connections threads cmd_put cmd_get cmd_offset tx_begin "
        "tx_xa_begin tx_commit tx_rollback get_miss put_failed total_messages topics config_checksum get_unreadable "
        "unreadable_ranges indexes_rebuilding loop_delay_ms_max loop_delay_ms_max_60s"
    )
    assert 0 <= int(values.pop("uptime")) < 600
    assert values.pop("version").startswith("1.4.6 metaq/")
    assert 2 <= int(values.pop("threads")) < 20
    assert 0 <= float(values.pop("loop_delay_ms_max_60s")) <= float(values.pop("loop_delay_ms_max"))
    return values


def test_config_is_the_raw_file_and_telnet_works(lone_broker: BrokerProcess, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", lone_broker.port), timeout=60) as telnet:
        telnet.sendall(b"stats config\r\nquit\r\n")
        received = b"".join(iter(lambda: telnet.recv(65536), b""))
    content = (tmp_path / "broker.toml").read_bytes()
    assert received == b"result 200 %d 2147483647\r\n" % len(content) + content


def test_stored_topics_are_counted_after_a_restart(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        client.put("dynamic-kept", 1, b"1")
    lone_broker.kill()
    lone_broker.start()
    with WireClient(lone_broker.port) as client:
        assert client.stats("offsets") == ["STATS", f"dynamic-kept part 1 min_offset 0 max_offset {FRAME + 1}", "END"]
