"""Frames both ways, whole and in pieces; and bytes that are none."""

import random
from itertools import pairwise

import pytest

from journal.frame import Lsn
from meta_broker.replication.frames import (
    BULK_BYTES_MAX,
    HEAD_BYTES,
    TEXT_BYTES_MAX,
    Anew,
    Data,
    Fetch,
    Frame,
    FrameDecoder,
    Hello,
    Part,
    Position,
    Refused,
    Report,
    Welcome,
    data_head,
    encode,
    part_head,
)
from meta_client.protocol.errors import RemoteProtocolError

HELLO = Hello(
    version=1,
    cluster="metaq",
    broker_id=7,
    slave_id=2,
    lives=((1, 1, 0), (1, 2, 4096)),
    start=128,
    end=8192,
    serves=True,
)
WELCOME = Welcome(epoch=2, parting=4096, proof_bytes=96, proof=7, beat_ms=500, silence_ms=3000, master="meta://h:1")
ANEW = Anew(epoch=2, start=0, checkpoint_bytes=3, reason="", beat_ms=500, silence_ms=3000, master="meta://h:1")
FETCH = Fetch(epoch=2, parting=4096, proof_bytes=96, proof=7, master="meta://h:1")
EVERYTHING: tuple[tuple[Frame, bytes], ...] = (
    (HELLO, encode(HELLO)),
    (WELCOME, encode(WELCOME)),
    (ANEW, encode(ANEW)),
    (FETCH, encode(FETCH)),
    (Part(0, b"abc"), part_head(0, 3) + b"abc"),
    (Data(Lsn(4096), b"\0" * 300), data_head(4096, 300) + b"\0" * 300),
    (Position(Lsn(1), Lsn(2), 3, True, "sync"), encode(Position(Lsn(1), Lsn(2), 3, True, "sync"))),
    (Report(Lsn(2**63 - 1)), encode(Report(Lsn(2**63 - 1)))),
    (Refused(text="no"), encode(Refused(text="no"))),
)
ALL = (Hello, Welcome, Anew, Fetch, Part, Data, Position, Report, Refused)
GOLDEN = bytes.fromhex("2a3e7afe08000000080000000010000000000000")


def joined(frames: list[Frame]) -> list[Frame]:
    """Bulk that came in pieces, as one."""
    whole: list[Frame] = []
    for frame in frames:
        last = whole[-1] if whole else None
        match last, frame:
            case Data(lsn, before), Data(_, data):
                whole[-1] = Data(lsn, bytes(before) + bytes(data))
            case Part(position, before), Part(_, data):
                whole[-1] = Part(position, bytes(before) + bytes(data))
            case _, Data(lsn, data):
                whole.append(Data(lsn, bytes(data)))
            case _, Part(position, data):
                whole.append(Part(position, bytes(data)))
            case _:
                whole.append(frame)
    return whole


def test_every_frame_whole_and_one_byte_at_a_time() -> None:
    wire = b"".join(raw for _, raw in EVERYTHING)
    expected = [frame for frame, _ in EVERYTHING]
    assert joined(list(FrameDecoder(*ALL).receive_data(wire))) == expected
    decoder = FrameDecoder(*ALL)
    assert joined([frame for byte in wire for frame in decoder.receive_data(bytes([byte]))]) == expected
    assert decoder.held_bytes == 0


def test_the_bytes_of_a_report() -> None:
    assert encode(Report(Lsn(4096))) == GOLDEN


def test_bulk_is_handed_on_as_it_comes_and_nothing_is_held() -> None:
    decoder = FrameDecoder(Data)
    wire = data_head(4096, BULK_BYTES_MAX) + bytes(BULK_BYTES_MAX)
    received = 0
    for start, end in pairwise(range(0, len(wire) + 1000, 1000)):
        for frame in decoder.receive_data(wire[start:end]):
            assert isinstance(frame, Data)
            assert frame.lsn == 4096 + received
            received += len(frame.data)
        assert decoder.held_bytes <= HEAD_BYTES + 8
    assert received == BULK_BYTES_MAX


@pytest.mark.parametrize(("frame", "raw"), EVERYTHING, ids=lambda value: type(value).__name__)
def test_what_the_other_side_must_not_say_is_refused(frame: Frame, raw: bytes) -> None:
    others = [cls for cls in ALL if cls is not type(frame)]
    with pytest.raises(RemoteProtocolError, match="nobody says here"):
        FrameDecoder(*others).receive_data(raw)


@pytest.mark.parametrize(("frame", "raw"), EVERYTHING, ids=lambda value: type(value).__name__)
def test_a_flipped_bit_before_the_bulk_is_never_obeyed(frame: Frame, raw: bytes) -> None:
    covered = HEAD_BYTES + 8 if isinstance(frame, Part | Data) else len(raw)
    for bit in range(covered * 8):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << bit % 8
        decoder = FrameDecoder(*ALL)
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
            FrameDecoder(*ALL).receive_data(head)


def test_noise_ends_in_an_error() -> None:
    for seed in range(300):
        decoder = FrameDecoder(*ALL)
        with pytest.raises(RemoteProtocolError):
            decoder.receive_data(random.Random(seed).randbytes(4096))
        assert decoder.held_bytes <= TEXT_BYTES_MAX + HEAD_BYTES
