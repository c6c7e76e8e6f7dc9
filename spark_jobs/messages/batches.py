"""Message frames as an Arrow batch of the wanted columns. Pure.

A malformed attribute or payload, which any producer can send, is a row with its reason in column `error` and the stored
bytes as payload: it neither stops a query nor passes for something else.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meta_client.protocol.compression import FLAG_MAGIC, PACKAGES, Codec, codec_number
from meta_client.protocol.id_layout import BIRTH_MS, BROKER_BITS, SEQUENCE_BITS
from meta_client.protocol.messages import DATA_BYTES_MAX, FLAG_ATTRIBUTE, decode_body
from meta_client.protocol.trace_context import split_traceparent
from spark_jobs.messages.columns import DECODED, HEADERS, arrow_fields
from spark_jobs.messages.frames import Extents, Frames
from spark_jobs.source.record_block import Numbers, gather

_WITH_KEY: Final = frozenset({"key", HEADERS})
_ATTRIBUTE_LENGTH: Final = np.dtype(">i4")
TIME_AT: Final = BROKER_BITS + SEQUENCE_BITS  # bits of an id below its time: a time of 41 bits ends in the year 2081
JOINED_ROWS: Final = 16 * 1024
JOINED_BYTES: Final = 512 * 1024
PartitionId = tuple[str, str]  # topic, and `broker-number`


def timestamps_us(ids: NDArray[Any]) -> Numbers:
    """Return the microseconds since 1970 at which a metaq broker gave *ids*."""
    found: Numbers = np.clip((ids.astype(np.int64) >> TIME_AT) + BIRTH_MS, 0, None) * 1000
    return found


def message_batch(
    frames: Frames,
    extents: Extents,
    names: Sequence[PartitionId],
    keys: Sequence[str],
    columns: tuple[str, ...],
    *,
    has_times: bool = True,
) -> pa.RecordBatch:
    """Return *columns* of *frames*. *names*, *keys*: what indexes in *extents* mean. *has_times*: ids hold times."""
    decoded = _decode(frames, columns) if DECODED.intersection(columns) else {}
    count = len(frames.at)

    def column(name: str) -> pa.Array:
        if name in decoded:
            return decoded[name]
        match name:
            case "topic":
                return _named([topic for topic, _ in names], extents.name[frames.extent])
            case "partition":
                return _named([partition for _, partition in names], extents.name[frames.extent])
            case "offset":
                return pa.array(frames.offset)
            case "id":
                return pa.array(frames.headers["id"].astype(np.int64))
            case "timestamp" if has_times:
                return pa.array(timestamps_us(frames.headers["id"])).cast(pa.timestamp("us", tz="UTC"))
            case "xid" if keys:
                return _named(keys, extents.key[frames.extent])
        return pa.nulls(count, arrow_fields((name,))[0].type)

    arrays = [column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_fields(columns))


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches that are small: each costs Spark what thousands of rows of numbers do. One that is large is not
    copied."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for each in batches:
        waiting.append(each)
        rows, size = rows + each.num_rows, size + each.nbytes
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield pa.concat_batches(waiting) if len(waiting) > 1 else each
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _named(values: Sequence[str], index: Numbers) -> pa.Array:
    """Return the *values* at *index*; null at -1."""
    return pa.array(values, pa.string()).take(pa.array(index, mask=index < 0))


def _decode(frames: Frames, columns: tuple[str, ...]) -> dict[str, pa.Array]:
    """Return key, payload and error, as far as they are wanted: all rows at once, the odd ones by themselves."""
    flags = frames.headers["flag"].astype(np.int64)
    at, end = frames.data_at, frames.data_end
    has_key = flags & FLAG_ATTRIBUTE != 0
    key_at, key_end = at.copy(), at.copy()
    odd = flags >> 16 == FLAG_MAGIC  # compressed, or said to be
    if has_key.any():
        fits = has_key & (end - at >= _ATTRIBUTE_LENGTH.itemsize)
        length = np.zeros(len(at), np.int64)
        length[fits] = gather(frames.data, at[fits], _ATTRIBUTE_LENGTH)
        fits &= (length >= 0) & (length <= end - at - _ATTRIBUTE_LENGTH.itemsize)
        odd |= has_key & ~fits
        key_at[fits] += _ATTRIBUTE_LENGTH.itemsize
        key_end[fits] = key_at[fits] + length[fits]
    found: dict[str, pa.Array] = {}
    if "payload" in columns:
        found["payload"] = _slices(frames.data, key_end, end)
    if _WITH_KEY.intersection(columns):
        found["key"] = _texts(_slices(frames.data, key_at, key_end), has_key)
    if "error" in columns:
        found["error"] = pa.nulls(len(at), pa.string())
    rows = np.flatnonzero(odd)
    if len(rows):
        found = _decode_odd(frames, rows, found)
    return _split_headers(found, columns) if _WITH_KEY.intersection(columns) else found


def _split_headers(found: dict[str, pa.Array], columns: tuple[str, ...]) -> dict[str, pa.Array]:
    """Take the trace context off the keys: the only header that messages have."""
    keys = found.pop("key")
    headers: list[list[dict[str, Any]]] = [[] for _ in keys] if HEADERS in columns else []
    has_context = pa.compute.match_substring(keys, "traceparent=").fill_null(False)
    if has_context.true_count:
        texts = keys.to_pylist()
        for row in np.flatnonzero(has_context.to_numpy(zero_copy_only=False)).tolist():
            texts[row], context = split_traceparent(texts[row])
            if headers and context is not None:
                headers[row].append({"key": "traceparent", "value": context.encode()})
        keys = pa.array(texts, pa.string())
    if "key" in columns:
        found["key"] = keys
    if HEADERS in columns:
        found[HEADERS] = pa.array(headers, arrow_fields((HEADERS,))[0].type)
    return found


def _slices(data: bytes | memoryview, begin: Numbers, end: Numbers) -> pa.Array:
    """Return bytes [begin, end) of *data* as a binary array. The places rise."""
    count = len(begin)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)  # each slice, and the bytes between it and the next, which are left out
    offsets[0::2], offsets[1::2] = begin, end
    every = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return every.take(pa.array(np.arange(0, 2 * count, 2)))


def _texts(raw: pa.Array, is_there: NDArray[np.bool_]) -> pa.Array:
    """Return *raw* as text, null where *is_there* is False; bytes that are no UTF-8 show U+FFFD."""
    if not is_there.any():
        return pa.nulls(len(raw), pa.string())
    try:
        texts = raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([each.decode(errors="replace") for each in raw.to_pylist()], pa.string())
    return pa.compute.if_else(pa.array(is_there), texts, pa.scalar(None, pa.string()))


def _decode_odd(frames: Frames, rows: Numbers, found: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Decode *rows* of *frames* as a client does, and put them into *found*."""
    view = memoryview(frames.data)
    values: dict[str, list[Any]] = {name: [] for name in DECODED}
    for row in rows.tolist():
        flag = int(frames.headers["flag"][row])
        data = bytes(view[int(frames.data_at[row]) : int(frames.data_end[row])])
        key, payload, error = None, data, None
        try:
            key, payload = decode_body(flag, data, DATA_BYTES_MAX)
        except ModuleNotFoundError:
            package = PACKAGES[Codec(codec_number(flag))]
            error = f"compressed, and package {package} is not installed on this worker"
        except ValueError as cause:
            error = str(cause)
        for name, value in (("key", key), ("payload", payload), ("error", error)):
            values[name].append(value)
    mask = np.zeros(len(frames.at), np.bool_)
    mask[rows] = True
    return {
        name: pa.compute.replace_with_mask(column, pa.array(mask), pa.array(values[name], column.type))
        for name, column in found.items()
    }
