"""Frames both ways, whole and in pieces; and bytes that are none."""

import random
from itertools import pairwise

import pytest

from journal.checksum import crc32
from journal.records.header import Lsn
from meta_broker.replication.link_protocol import (
    BULK_BYTES_MAX,
    HEAD_BYTES,
    TEXT_BYTES_MAX,
    Accept,
    FetchTail,
    FlushAck,
    FullResync,
    Handshake,
    Heartbeat,
    JournalChunk,
    LinkDecoder,
    LinkFrame,
    Rejected,
    SnapshotChunk,
    encode,
    journal_chunk_head,
    snapshot_chunk_head,
)
from meta_client.protocol.errors import RemoteProtocolError

HANDSHAKE = Handshake(
    version=1,
    cluster="metaq",
    broker_id=7,
    slave_id=2,
    epoch_history=((1, 1, 0), (1, 2, 4096)),
    start=128,
    end=8192,
    serves=True,
)
ACCEPT = Accept(
    epoch=2, divergence_lsn=4096, proof_bytes=96, proof=7, heartbeat_ms=500, silence_ms=3000, master="meta://h:1"
)
FULL_RESYNC = FullResync(
    epoch=2, start=0, checkpoint_bytes=3, reason="", heartbeat_ms=500, silence_ms=3000, master="meta://h:1"
)
FETCH_TAIL = FetchTail(epoch=2, divergence_lsn=4096, proof_bytes=96, proof=7, master="meta://h:1")
EVERYTHING: tuple[tuple[LinkFrame, bytes], ...] = (
    (HANDSHAKE, encode(HANDSHAKE)),
    (ACCEPT, encode(ACCEPT)),
    (FULL_RESYNC, encode(FULL_RESYNC)),
    (FETCH_TAIL, encode(FETCH_TAIL)),
    (SnapshotChunk(0, b"abc"), snapshot_chunk_head(0, 3) + b"abc"),
    (JournalChunk(Lsn(4096), b"\0" * 300), journal_chunk_head(4096, 300) + b"\0" * 300),
    (Heartbeat(Lsn(1), Lsn(2), 3, True, "sync"), encode(Heartbeat(Lsn(1), Lsn(2), 3, True, "sync"))),
    (FlushAck(Lsn(2**63 - 1)), encode(FlushAck(Lsn(2**63 - 1)))),
    (Rejected(text="no"), encode(Rejected(text="no"))),
)
ALL = (Handshake, Accept, FullResync, FetchTail, SnapshotChunk, JournalChunk, Heartbeat, FlushAck, Rejected)
GOLDEN = bytes.fromhex("2a3e7afe08000000080000000010000000000000")


def joined(frames: list[LinkFrame]) -> list[LinkFrame]:
    """Bulk that came in pieces, as one."""
    whole: list[LinkFrame] = []
    for frame in frames:
        last = whole[-1] if whole else None
        match last, frame:
            case JournalChunk(lsn, before), JournalChunk(_, data):
                whole[-1] = JournalChunk(lsn, bytes(before) + bytes(data))
            case SnapshotChunk(position, before), SnapshotChunk(_, data):
                whole[-1] = SnapshotChunk(position, bytes(before) + bytes(data))
            case _, JournalChunk(lsn, data):
                whole.append(JournalChunk(lsn, bytes(data)))
            case _, SnapshotChunk(position, data):
                whole.append(SnapshotChunk(position, bytes(data)))
            case _:
                whole.append(frame)
    return whole


def test_every_frame_whole_and_one_byte_at_a_time() -> None:
    wire = b"".join(raw for _, raw in EVERYTHING)
    expected = [frame for frame, _ in EVERYTHING]
    assert joined(list(LinkDecoder(*ALL).receive_data(wire))) == expected
    decoder = LinkDecoder(*ALL)
    assert joined([frame for byte in wire for frame in decoder.receive_data(bytes([byte]))]) == expected
    assert decoder.held_bytes == 0


def test_the_bytes_of_a_report() -> None:
    assert encode(FlushAck(Lsn(4096))) == GOLDEN


def test_bulk_is_handed_on_as_it_comes_and_nothing_is_held() -> None:
    decoder = LinkDecoder(JournalChunk)
    wire = journal_chunk_head(4096, BULK_BYTES_MAX) + bytes(BULK_BYTES_MAX)
    received = 0
    for start, end in pairwise(range(0, len(wire) + 1000, 1000)):
        for frame in decoder.receive_data(wire[start:end]):
            assert isinstance(frame, JournalChunk)
            assert frame.lsn == 4096 + received
            received += len(frame.data)
        assert decoder.held_bytes <= HEAD_BYTES + 8
    assert received == BULK_BYTES_MAX


@pytest.mark.parametrize(("frame", "raw"), EVERYTHING, ids=lambda value: type(value).__name__)
def test_what_the_other_side_must_not_say_is_refused(frame: LinkFrame, raw: bytes) -> None:
    others = [cls for cls in ALL if cls is not type(frame)]
    with pytest.raises(RemoteProtocolError, match="an unexpected frame"):
        LinkDecoder(*others).receive_data(raw)


@pytest.mark.parametrize(("frame", "raw"), EVERYTHING, ids=lambda value: type(value).__name__)
def test_a_flipped_bit_before_the_bulk_is_never_obeyed(frame: LinkFrame, raw: bytes) -> None:
    covered = HEAD_BYTES + 8 if isinstance(frame, SnapshotChunk | JournalChunk) else len(raw)
    for bit in range(covered * 8):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << bit % 8
        decoder = LinkDecoder(*ALL)
        try:
            found = list(decoder.receive_data(bytes(bad)))
        except RemoteProtocolError:
            continue
        assert found == []  # longer than what is here: it waits
        assert 7 <= bit // 8 < HEAD_BYTES


def test_lengths_are_bounded_before_anything_is_held() -> None:
    for kind, length in ((1, TEXT_BYTES_MAX + 1), (6, BULK_BYTES_MAX + 9), (6, 8), (8, 9), (0, 8), (200, 8)):
        head = b"\0\0\0\0" + bytes([kind, 0, 0, 0]) + length.to_bytes(4, "little")
        with pytest.raises(RemoteProtocolError):
            LinkDecoder(*ALL).receive_data(head)


def test_noise_ends_in_an_error() -> None:
    for seed in range(300):
        decoder = LinkDecoder(*ALL)
        with pytest.raises(RemoteProtocolError):
            decoder.receive_data(random.Random(seed).randbytes(4096))
        assert decoder.held_bytes <= TEXT_BYTES_MAX + HEAD_BYTES


def test_a_position_has_no_flags_that_nobody_defined() -> None:
    raw = bytearray(encode(Heartbeat(Lsn(1), Lsn(2), 3, True, "sync")))
    raw[-1] |= 0x80
    raw[:4] = crc32(raw[4:]).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError, match="flags 131 of a position"):
        LinkDecoder(Heartbeat).receive_data(bytes(raw))
