"""Decoders under streams that anybody may send: METAQ_FUZZ_SECONDS says how long, a failure prints its seed.

Whatever comes: nothing but RemoteProtocolError is raised, what is held stays within the bounds, and the result does
not depend on where the stream was cut.
"""

import os
import time
from collections.abc import Iterator
from random import Random

import pytest

from meta_client.protocol.decoder import RequestDecoder, ResponseDecoder
from meta_client.protocol.errors import InvalidMessage, RemoteProtocolError
from meta_client.protocol.frame_columns import ALIKE_MIN
from meta_client.protocol.limits import Limits
from meta_client.protocol.messages import encode_frame, walk_frames
from meta_client.protocol.stamping import stamp_ids
from tests.fuzz.streams import REQUESTS, RESPONSES, cuts, stream

SECONDS = float(os.environ.get("METAQ_FUZZ_SECONDS", "0"))
SEEDS = 3_000  # when no time is given
FIRST_SEED = int(os.environ.get("METAQ_FUZZ_SEED", "0"))
TIGHT = Limits(line_bytes_max=120, body_bytes_max=100)
Decoder = type[RequestDecoder] | type[ResponseDecoder]


def seeds() -> Iterator[int]:
    """Seeds until the time is over, or SEEDS of them."""
    end, seed = time.monotonic() + SECONDS, FIRST_SEED
    while time.monotonic() < end or (not SECONDS and seed < FIRST_SEED + SEEDS):
        yield seed
        seed += 1


def decoded(decoder_type: Decoder, limits: Limits, pieces: list[bytes]) -> tuple[list[object], str | None]:
    """The commands, and what was wrong, if anything was."""
    decoder, commands = decoder_type(limits), list[object]()
    bound = max(limits.line_bytes_max + 2, limits.body_bytes_max)
    for piece in pieces:
        try:
            commands += decoder.receive_data(piece)
        except RemoteProtocolError as error:
            commands += decoder.completed_before_failure
            with pytest.raises(RemoteProtocolError, match=r".*"):
                decoder.receive_data(b"version 1\r\n")
            assert not decoder.buffered_bytes
            return commands, str(error)
        assert decoder.buffered_bytes <= bound
    return commands, None


@pytest.mark.parametrize(("decoder_type", "vectors"), [(RequestDecoder, REQUESTS), (ResponseDecoder, RESPONSES)])
@pytest.mark.timeout(SECONDS + 180)
def test_where_a_stream_is_cut_changes_nothing(decoder_type: Decoder, vectors: list[bytes]) -> None:
    count = failures = 0
    for seed in seeds():
        random = Random(seed)
        data, limits = stream(random, vectors), random.choice([Limits(), TIGHT])
        try:
            whole = decoded(decoder_type, limits, [data])
            assert decoded(decoder_type, limits, cuts(data, random)) == whole
        except Exception as error:
            error.add_note(f"METAQ_FUZZ_SEED={seed}, {decoder_type.__name__}, {limits}: {data!r}")
            raise
        count += 1
        failures += whole[1] is not None
    print(f"{decoder_type.__name__}: {count} streams from seed {FIRST_SEED} on, {failures} refused")
    assert 0.1 < failures / count < 0.95, "streams must be neither all sound nor all hopeless"


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.usefixtures("either_core")
def test_frames_are_stamped_and_read_by_the_same_rules() -> None:
    """A batch that the broker takes is one that a consumer can read, message by message; any other is refused."""
    count = taken = 0
    for seed in seeds():
        random = Random(seed)
        data, messages = _batch(random)
        try:
            try:
                stamp_ids(stamped := bytearray(data), messages, 4096, 200)
            except ValueError:
                stamped = bytearray()
            read = _readable(data)
            assert bool(stamped) == (read == messages and len(data) > 0), (read, messages)
            if stamped:
                assert [message_id for _, _, message_id, _, _ in walk_frames(stamped)] == list(
                    range(4096, 4096 + messages)
                )
        except Exception as error:
            error.add_note(f"METAQ_FUZZ_SEED={seed}: {messages} messages {data!r}")
            raise
        count += 1
        taken += bool(stamped)
    print(f"stamp_ids: {count} batches from seed {FIRST_SEED} on, {taken} taken")
    assert 0.05 < taken / count < 0.95


def _batch(random: Random) -> tuple[bytes, int]:
    # Few or many, alike or not: what a broker does by columns, and what it does one by one.
    count = random.randint(1, 3) if random.random() < 0.5 else random.randint(ALIKE_MIN, 20)
    size = random.randrange(60) if random.random() < 0.5 else None
    sizes = [random.randrange(60) if size is None else size for _ in range(count)]
    frames = [encode_frame(0, 0, random.randbytes(each)) for each in sizes]
    data = bytearray(b"".join(frames))
    if random.random() < 0.6:
        at = random.randrange(len(data))
        if random.random() < 0.7:
            data[at] ^= 1 << random.randrange(8)
        else:
            del data[at:]
    return bytes(data), count if random.random() < 0.9 else random.randint(1, 22)


def _readable(data: bytes) -> int | None:
    """Number of whole, valid messages in *data*; None if it is anything else."""
    try:
        ends = [next_offset for _, next_offset, _, _, _ in walk_frames(data)]
    except InvalidMessage:
        return None
    return len(ends) if ends and ends[-1] == len(data) else None
