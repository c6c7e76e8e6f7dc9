"""The child's end of the conversation with the stage: orders from stdin, events to stdout."""

import io
import sys
import threading
from collections.abc import Callable

from meta_client.demo.talk import LINE_BYTES_MAX, Event, Order, decode_order, encode

_writing = threading.Lock()
# Not sys.stdin: its buffer has a lock, which a thread waiting for input holds when the interpreter wants to end.
_orders = io.FileIO(0, "rb", closefd=False)


def read_order() -> Order | None:
    """The next order; None once the stage is gone. One thread at a time. Raises Malformed."""
    line = _orders.readline(LINE_BYTES_MAX)
    return decode_order(line) if line.endswith(b"\n") else None


def tell(said: Event) -> None:
    """Tell the stage. Any thread."""
    with _writing:
        sys.stdout.buffer.write(encode(said))
        sys.stdout.buffer.flush()


def listen(on_order: Callable[[Order | None], None]) -> None:
    """Call *on_order* with every further order, on a thread of its own, the last time with None."""

    def run() -> None:
        while (order := read_order()) is not None:
            on_order(order)
        on_order(None)

    threading.Thread(target=run, name="orders", daemon=True).start()
