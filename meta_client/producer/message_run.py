"""Many messages for one topic, encoded, as `send_many` takes them: from lists, numpy arrays or Arrow arrays. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from meta_client.producer.batch import ProducerBatch
from meta_client.producer.outgoing import Compression, encode_message
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES


class MessageRun:
    """Messages of one topic, in order. Their bodies and flags do not change."""

    __slots__ = ("_ends", "bodies", "bytes", "flags", "may_exceed", "whole")

    def __init__(self, bodies: list[bytes], flags: list[int], whole: "MessageRun | None" = None) -> None:
        """*whole*: the run of which these messages are a part."""
        self.bodies = bodies
        self.flags = flags
        self.whole = whole or self
        self.may_exceed = False  # the buffer's limit, as there was room for all; of the whole
        lengths = list(map(len, bodies))
        if bodies and lengths.count(lengths[0]) == len(lengths):
            size = HEADER_BYTES + lengths[0]
            self._ends: Sequence[int] = range(size, size * len(bodies) + 1, size)
        else:
            self._ends = list(accumulate(map(HEADER_BYTES.__add__, lengths)))
        self.bytes = self._ends[-1] if bodies else 0  # of the frames

    def __len__(self) -> int:
        return len(self.bodies)

    def size(self, start: int, stop: int) -> int:
        """Return the bytes of the frames of messages [start, stop), one at least."""
        return self._ends[stop - 1] - (self._ends[start - 1] if start else 0)

    def need(self, start: int, batch_bytes: int) -> int:
        """Return the bytes that a batch with room for *batch_bytes* takes of the messages from *start* on; one message
        at least."""
        return max(self.size(start, start + 1), min(batch_bytes, self.size(start, len(self))))

    def stop(self, start: int, bytes_max: int, count_max: int) -> int:
        """Return the end of the messages from *start* on that fit into *bytes_max*, *count_max* at most."""
        begin = self._ends[start - 1] if start else 0
        return bisect_right(self._ends, begin + bytes_max, start, min(len(self), start + count_max))

    def select(self, indexes: Sequence[int]) -> "MessageRun":
        bodies, flags = [self.bodies[index] for index in indexes], [self.flags[index] for index in indexes]
        return MessageRun(bodies, flags, self.whole)


class RunPart(NamedTuple):
    """Messages *indexes* of a run, which are those from *first* on in *batch*."""

    batch: ProducerBatch
    first: int
    indexes: Sequence[int]


def payload_list(payloads: Iterable[Any]) -> list[bytes]:
    """Return the payloads of a list, of a one-dimensional numpy array of bytes (kind S, without the zeros that pad
    them, or V), or of an Arrow binary array, chunked or not. Elements of other iterables are checked later. Raises
    TypeError."""
    match type(payloads).__module__.partition(".")[0]:
        case "numpy":
            return _of_numpy(payloads)
        case "pyarrow":
            return _of_arrow(payloads)
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise TypeError(f"payloads are a list of bytes, not one {type(payloads).__name__}: send_async takes that")
    return list(payloads)  # our own: the caller's may change before all of it is sent


def encode_run(
    topic: str, payloads: Iterable[Any], keys: Iterable[str | None] | None, compression: Compression | None
) -> tuple[MessageRun, list[bytes], list[str | None] | None]:
    """Encode messages; return them with their payloads and keys as lists.

    Raises what encode_message raises, with the index of the message, and ValueError for another number of keys.
    """
    wanted = payload_list(payloads)
    is_plain = keys is None and compression is None and set(map(type, wanted)) <= {bytes}
    if is_plain and max(map(len, wanted), default=0) <= DATA_BYTES_MAX:
        return MessageRun(wanted, [0] * len(wanted)), wanted, None
    given = None if keys is None else list(keys)
    if given is not None and len(given) != len(wanted):
        raise ValueError(f"{len(given)} keys for {len(wanted)} payloads: give one for each, or None")
    bodies, flags = [], []
    for index, payload in enumerate(wanted):
        try:
            flag, body = encode_message(topic, payload, None if given is None else given[index], compression)
        except (LocalProtocolError, TypeError) as error:
            raise type(error)(f"message {index} of {len(wanted)}: {error}") from error
        bodies.append(body)
        flags.append(flag)
    return MessageRun(bodies, flags), wanted, given


def _of_numpy(array: Any) -> list[bytes]:
    if array.ndim != 1 or array.dtype.kind not in "SVO" or array.dtype.names is not None:
        raise TypeError(
            f"payloads are a one-dimensional array of bytes, not {array.dtype} in {array.ndim} dimensions: "
            "give one of kind S, V or O"
        )
    listed: list[bytes] = array.tolist()
    return listed


def _of_arrow(array: Any) -> list[bytes]:
    if not str(array.type).removeprefix("large_").removeprefix("fixed_size_").startswith("binary"):
        raise TypeError(f"payloads are a binary array, not {array.type}: cast it to binary")
    listed: list[bytes] = []
    for chunk in array.chunks if hasattr(array, "chunks") else [array]:
        if chunk.null_count:
            index = len(listed) + chunk.is_null().to_pylist().index(True)
            raise TypeError(f"message {index} of {len(array)}: a payload is bytes, not null: drop it, or fill it")
        if not len(chunk):
            continue
        plain = chunk.cast("large_binary")
        _, ends, data = plain.buffers()
        offsets = memoryview(ends).cast("q")[plain.offset : plain.offset + len(plain) + 1]
        first = offsets[0]
        if offsets[-1] == first:
            listed += [b""] * len(plain)
            continue
        joined = data.slice(first, offsets[-1] - first).to_pybytes()
        listed += [joined[start - first : end - first] for start, end in pairwise(offsets)]
    return listed
