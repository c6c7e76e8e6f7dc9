"""Properties of the codec: what is encoded decodes, and no bytes do more than end a connection."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from journal.records.producer_state import BatchSequence
from journal.records.record import PRODUCER_BYTES_MAX
from journal.records.xid import BranchKey, LocalKey, XaKey, Xid
from meta_client.protocol.decoder import RequestDecoder, ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import LocalProtocolError, RemoteProtocolError
from meta_client.protocol.limits import BATCH_MESSAGES_MAX, Limits
from meta_client.protocol.messages import Message, encode_body, encode_frame, iter_frames
from meta_client.protocol.requests import (
    TEXTS_OF_BRANCH,
    Authenticate,
    BranchCommand,
    BranchVerb,
    Count,
    Dropped,
    Fetch,
    Find,
    Get,
    MultiPut,
    OffsetQuery,
    Offsets,
    Put,
    Quit,
    Replicate,
    Request,
    ResetGroup,
    Stats,
    Sync,
    TakeCheckpoint,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.responses import READ_FROM, Behind, Data, Response, Result, Value
from tests.fixtures.responses import encode_response

pytestmark = pytest.mark.usefixtures("either_core")

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
checksums = st.none() | int32s.filter(lambda number: number != -1)
bodies = st.binary(max_size=300)
letters = st.characters(exclude_categories=["Cs", "Cc", "Z"])
names = st.text(letters, min_size=1, max_size=20)
qualifiers = st.text(letters.filter(lambda letter: letter != ":"), min_size=1, max_size=20)
parts = st.binary(max_size=64)
keys: st.SearchStrategy[BranchKey] = st.builds(LocalKey, qualifiers, int32s) | st.builds(
    XaKey, st.builds(Xid, st.integers(0, 2**31 - 1), parts, parts), qualifiers
)


def has_a_form(transaction: TransactionCommand) -> bool:
    qualifier, timeout = transaction.qualifier, transaction.timeout_seconds
    return timeout is not None or qualifier is None or not qualifier.encode().isdigit()


sequences = st.builds(
    BatchSequence,
    qualifiers.filter(lambda name: len(name.encode()) <= PRODUCER_BYTES_MAX),
    st.integers(0, 2**63 - 1),
)


def branch_command(verb: BranchVerb, key: XaKey, texts: list[str], opaque: int) -> BranchCommand:
    who, why, evidence = [text if number < TEXTS_OF_BRANCH[verb] else "" for number, text in enumerate(texts)]
    return BranchCommand(verb, None if verb is BranchVerb.LEDGER else key, who, why, opaque, evidence)


branch_commands = st.builds(
    branch_command,
    st.sampled_from(BranchVerb),
    st.builds(XaKey, st.builds(Xid, st.integers(0, 2**31 - 1), parts, parts), qualifiers),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), min_size=3, max_size=3),
    int32s,
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(Put, names, int32s, int32s, checksums, st.none() | keys, int32s, bodies),
    st.builds(Sync, names, int32s, int32s, int64s, checksums, int32s, bodies),
    st.builds(
        *(MultiPut, names, int32s, st.integers(1, BATCH_MESSAGES_MAX), int32s),
        *(st.none() | sequences, st.none() | keys, int32s, bodies),
    ),
    branch_commands,
    st.builds(Get, names, names, int32s, int64s, int32s, int32s),
    st.builds(
        Fetch, names, names, int32s, int64s, int32s, int32s, int32s, int32s, st.none() | st.integers(0, 2**63 - 1)
    ),
    st.builds(OffsetQuery, names, names, int32s, int64s, int32s),
    st.builds(ResetGroup, names, names, int32s, int64s, int64s, int32s),
    st.builds(Count, names, int32s, int64s, int32s),
    st.builds(Offsets, names, int32s, int64s, int32s),
    st.builds(Find, names, int32s, int64s, st.integers(1, 256), parts | int64s, int32s),
    st.builds(TakeCheckpoint, int32s),
    st.builds(Replicate, int32s),
    st.builds(Authenticate, names, st.binary(max_size=2048), int32s),
    st.builds(Stats, names | st.just(""), int32s),
    st.builds(Version, int32s),
    st.builds(Quit),
    st.builds(
        TransactionCommand,
        st.none() | keys,
        names,
        st.sampled_from(TransactionVerb),
        st.none() | st.integers(1, 2**31 - 1),
        st.none() | names,
        int32s,
    ).filter(has_a_form),
    st.builds(
        TopicCommand,
        st.sampled_from(TopicVerb),
        names,
        st.lists(st.tuples(names.filter(lambda name: "=" not in name), names), max_size=3).map(tuple),
        int32s,
    ),
)
responses: st.SearchStrategy[Response] = st.one_of(
    st.builds(Result, int32s, bodies, int32s),
    st.builds(Value, bodies, int32s),
    st.builds(
        *(Data, bodies, st.integers(0, 2**63 - 1), st.from_regex(READ_FROM, fullmatch=True), int32s),
        st.none() | st.builds(Behind, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    ),
)

# Bytes near the language, so that many lines are nearly right: whole words, separators, numbers, and noise.
words = b"put get fetch sync offset transaction stats version result value data m s1 t g 0 1 -1 5 64 TX:s:1 null BEGIN"
words += b" XID:1:67:62:uq find key=61 id=7"
whole_commands = [b"put t 0 5 0 -1 1\r\nhello", b"value 5 1\r\nhello", b"result 200 0 1\r\n", b"quit\r\n"]
separators = [b"\r\n", b"\r", b"\n", b" ", b"hello"]
pieces = [*(word + b" " for word in words.split()), *whole_commands, *separators]
fragments = st.lists(st.sampled_from(pieces) | st.binary(max_size=8), max_size=40).map(b"".join)
cuts = st.lists(st.integers(0, 400), max_size=12)


def feed(decoder: Any, stream: bytes, positions: list[int], limits: Limits) -> tuple[list[Any], str | None]:
    """All commands of *stream*, cut at *positions*, and why it ended early if it did. Checks the bounds throughout."""
    decoded: list[Any] = []
    edges = [0, *sorted(positions), len(stream)]
    for start, end in pairwise(edges):
        try:
            decoded += decoder.receive_data(stream[start:end])
        except RemoteProtocolError as error:
            return decoded + decoder.completed_before_failure, str(error)
        assert decoder.buffered_bytes <= max(limits.line_bytes_max + 1, limits.body_bytes_max)
    return decoded, None


@settings(deadline=None)
@given(st.lists(requests, max_size=6), cuts)
def test_requests_round_trip(commands: list[Request], positions: list[int]) -> None:
    stream = b"".join(b"".join(encode_request(command)) for command in commands)
    assert feed(RequestDecoder(), stream, positions, Limits()) == (commands, None)


@settings(deadline=None)
@given(st.lists(responses, max_size=6), cuts)
def test_responses_round_trip(commands: list[Response], positions: list[int]) -> None:
    stream = b"".join(map(encode_response, commands))
    assert feed(ResponseDecoder(), stream, positions, Limits()) == (commands, None)


@pytest.mark.parametrize("new_decoder", [RequestDecoder, ResponseDecoder])
@settings(deadline=None)
@given(stream=fragments | st.binary(max_size=400), positions=cuts)
@example(stream=b"x" * 70, positions=[63, 64, 65, 66])
@example(stream=b"q" * 64 + b"\r\n" + b"x" * 66, positions=[64, 65, 130])
def test_any_bytes_in_any_pieces(
    new_decoder: Callable[[Limits], RequestDecoder | ResponseDecoder], stream: bytes, positions: list[int]
) -> None:
    limits = Limits(line_bytes_max=64, body_bytes_max=64)
    whole = feed(new_decoder(limits), stream, [], limits)
    assert feed(new_decoder(limits), stream, positions, limits) == whole


@settings(deadline=None)
@given(fragments)
def test_what_is_decoded_can_be_sent_on_or_is_refused_here(stream: bytes) -> None:
    for request in feed(RequestDecoder(), stream, [], Limits())[0]:
        if isinstance(request, Dropped):
            continue
        try:
            wire = b"".join(encode_request(request))
        except LocalProtocolError:
            continue  # names with control characters: read, never written
        assert RequestDecoder().receive_data(wire) == [request]


attributes = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(deadline=None)
@given(st.lists(st.tuples(int64s, attributes, bodies), max_size=5), st.integers(0, 2**40), st.data())
def test_frames_round_trip(messages: list[tuple[int, str | None, bytes]], base: int, data: st.DataObject) -> None:
    stream = b""
    expected = []
    for message_id, attribute, payload in messages:
        flag, body = encode_body(payload, attribute)
        start, stream = base + len(stream), stream + encode_frame(message_id, flag, body)
        expected.append((start, base + len(stream), Message(message_id, flag, attribute, payload)))
    assert list(iter_frames(stream, base)) == expected
    cut = data.draw(st.integers(0, len(stream)))
    whole = [item for item in expected if item[1] <= base + cut]
    assert list(iter_frames(memoryview(stream)[:cut], base, verify_checksums=False)) == whole
