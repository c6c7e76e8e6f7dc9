"""A batch as numpy and Arrow columns. Either is imported when it is asked for."""

from collections.abc import Sequence
from typing import Any

from meta_client.consumer.messages.alike_run import AlikeRun
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.protocol.messages import HEADER_BYTES

_ID = slice(8, 16)  # in a message's header

Piece = AlikeRun | list[ReceivedMessage]


def numpy_payloads(pieces: Sequence[Piece]) -> Any:
    """Return payloads of one length as an array of kind V over their bytes, read only. Raises ValueError."""
    import numpy

    (piece, *others) = pieces
    if others or not isinstance(piece, AlikeRun) or piece.size == HEADER_BYTES:
        raise ValueError("the payloads are not plain ones of one length, at least 1: ask for to_arrow()")
    # Not numpy.ndarray(buffer=...): that keeps no view, and the bytes below it could be used again.
    return _payload_column(piece.table(numpy))


def _payload_column(table: Any) -> Any:
    """Return the payloads of *table*, none empty, as one column: copied in half the time of columns of bytes."""
    return table[:, HEADER_BYTES:].view(f"V{table.shape[1] - HEADER_BYTES}")[:, 0]


def record_batch(pieces: Sequence[tuple[Piece, Sequence[int]]]) -> Any:
    """Return the columns of *pieces*, each with its offsets."""
    import pyarrow

    parts = [
        _of_run(piece, offsets) if isinstance(piece, AlikeRun) else _of_messages(piece) for piece, offsets in pieces
    ]
    # Joining one array copies it, too.
    joined = parts[0] if len(parts) == 1 else map(pyarrow.concat_arrays, zip(*parts, strict=True))
    return pyarrow.RecordBatch.from_arrays(list(joined), ["offset", "message_id", "attribute", "payload"])


def _of_run(run: AlikeRun, offsets: Sequence[int]) -> tuple[Any, ...]:
    import numpy
    import pyarrow

    table, length = run.table(numpy), run.size - HEADER_BYTES
    ends = numpy.arange(run.count + 1, dtype=numpy.int32) * length
    data = _payload_column(table).copy() if length else b""
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(data)]
    ids = numpy.ascontiguousarray(table[:, _ID]).view(">i8").ravel().astype("i8")
    return (
        pyarrow.array(numpy.arange(offsets[0], offsets[-1] + 1, run.size)),
        pyarrow.array(ids),
        pyarrow.nulls(run.count, pyarrow.string()),
        pyarrow.Array.from_buffers(pyarrow.binary(), run.count, buffers),
    )


def _of_messages(messages: Sequence[ReceivedMessage]) -> tuple[Any, ...]:
    import pyarrow

    return (
        pyarrow.array([message.offset for message in messages], pyarrow.int64()),
        pyarrow.array([message.message_id for message in messages], pyarrow.int64()),
        pyarrow.array([message.attribute for message in messages], pyarrow.string()),
        pyarrow.array([message.payload for message in messages], pyarrow.binary()),
    )
