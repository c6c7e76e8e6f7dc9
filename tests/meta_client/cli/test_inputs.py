"""Parsing of inputs into messages, and the errors for inputs that cannot be one."""

import io
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.cli.formats import message_object, parse_template
from meta_client.cli.inputs import (
    BadInput,
    ReadItems,
    read_envelopes,
    read_lines,
    read_objects,
    read_records,
    read_whole,
)
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.protocol.messages import DATA_BYTES_MAX
from zk.tree.nodes import Partition


def read(reader: ReadItems, data: bytes) -> list[tuple[bytes, str | None, int]]:
    return [(item.payload, item.attribute, item.line) for item in reader("in", io.BytesIO(data))]


def test_records_stand_as_they_are_and_know_their_line() -> None:
    data = b'id,text\r\n1,"two\nlines, ""quoted"""\r\n\n3,plain\n4,last'
    assert read(partial(read_records, key="id", has_header=False), data) == [
        (b'1,"two\nlines, ""quoted"""', "1", 2),
        (b"3,plain", "3", 5),
        (b"4,last", "4", 6),
    ]
    assert [line for _, _, line in read(partial(read_records, key="2", has_header=False), data)] == [1, 2, 5, 6]
    assert [key for _, key, _ in read(partial(read_records, key="2", has_header=True), data)] == [
        'two\nlines, "quoted"',
        "plain",
        "last",
    ]
    assert read(partial(read_records, key="id", has_header=False), b"") == []


@pytest.mark.parametrize(
    ("reader", "data", "said"),
    [
        (
            partial(read_lines, attribute=None),
            b"a\n" + b"x" * (DATA_BYTES_MAX + 1),
            "in, line 2 is longer than 2097152 bytes",
        ),
        (partial(read_whole, attribute=None), b"x" * (DATA_BYTES_MAX + 1), "in is longer than 2097152 bytes"),
        (partial(read_records, key="2", has_header=False), b"a,b\nc\n", "in, line 2 has 1 columns, --key-column is 2"),
        (partial(read_records, key="key", has_header=False), b"a,b\n", "in, line 1: no column is named key: a, b"),
        (partial(read_records, key="1", has_header=False), b"a\n\xff\n", "in, line 2 is not comma-separated UTF-8"),
        (partial(read_records, key="1", has_header=False), b'a\n"b"c\n', "in, line 2 is not comma-separated UTF-8"),
        (
            partial(read_records, key="1", has_header=False),
            b'a\n"never closed\n',
            "in, line 2 is not comma-separated UTF-8",
        ),
        (partial(read_records, key="1", has_header=False), b'"' + b"x\n" * DATA_BYTES_MAX, "a quote is not closed"),
        (
            partial(read_envelopes, attribute=None),
            b'{"payload": "a"}\n\n',
            "in, line 2 is not what `metaq consume --json` prints",
        ),
        (
            partial(read_envelopes, attribute=None),
            b'{"payload": "a", "payload_base64": "YQ=="}',
            "it needs one of payload and payload_base",
        ),
        (partial(read_envelopes, attribute=None), b'{"attribute": "a"}', "it needs one of payload and payload_base64"),
        (partial(read_envelopes, attribute=None), b'{"payload_base64": "?"}', "in, line 1 is not what"),
        (partial(read_envelopes, attribute=None), b"[" * 100_000, "in, line 1 is not what"),
        (
            partial(read_objects, field="id"),
            b'{"a": 1}',
            "in, line 1 is no JSON object with a key in id (it has no id)",
        ),
        (partial(read_objects, field="id"), b'{"id": {}}', "in, line 1 is no JSON object with a key in id"),
        (partial(read_objects, field="id"), b"7", "in, line 1 is no JSON object with a key in id"),
    ],
)
def test_what_is_bad_is_named_with_its_place(reader: ReadItems, data: bytes, said: str) -> None:
    with pytest.raises(BadInput) as raised:
        read(reader, data)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def message(payload: bytes, attribute: str | None) -> ReceivedMessage:
    return ReceivedMessage("orders", Partition(0, 3), 4096, 7, 0, attribute, payload, 4096 + 20 + len(payload))


@given(st.binary(max_size=50), st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_what_consume_prints_is_read_back(payload: bytes, attribute: str | None) -> None:
    line = msgspec.json.encode(message_object(message(payload, attribute), None))
    assert read(partial(read_envelopes, attribute=None), line + b"\n") == [(payload, attribute, 1)]


def test_templates() -> None:
    it = message(b"caf\xc3\xa9\xff", None)
    template = parse_template(
        r"{{{topic}/{partition}}} {offset}-{next}\t{id}\\{attribute}|{hex} {base64} {bytes} {time}|{payload}\n"
    )
    assert template(it, 0).startswith(b"{orders/0-3} 4096-4122\t7\\|636166c3a9ff Y2Fmw6n/ 6 19")
    assert template(it, None).endswith(b" 6 |caf\xc3\xa9\xff\n")
    hostile = message(b"caf\xc3\xa9\xff\x1b]0;x\x07\r\n\t\xc2\x9b1m", "\x1b[2J")
    assert parse_template(r"{attribute}\0{payload}", for_terminal=True)(hostile, 0).decode() == (
        "\\x1b[2J\0café\\xff\\x1b]0;x\\x07\\r\n\t\\x9b1m"
    )
    for wrong, said in [
        (r"\q", r"\\q is none of"),
        ("{", "stands alone"),
        ("a}", "stands alone"),
        ("\\", "stands alone"),
    ]:
        with pytest.raises(ValueError, match=said):
            parse_template(wrong)
