"""The child's end of the protocol with the stage: orders from stdin, events to stdout."""

import io
import sys
import threading
from collections.abc import Callable

from meta_broker.demo.talk import LINE_BYTES_MAX, Event, Order, decode_order, encode

_writing = threading.Lock()
# Not sys.stdin: a thread waiting for input holds its buffer's lock, which blocks the interpreter's end.
_orders = io.FileIO(0, "rb", closefd=False)


def read_order() -> Order | None:
    """Return the next order; None once the stage is gone. One thread at a time. Raises Malformed."""
    line = _orders.readline(LINE_BYTES_MAX)
    return decode_order(line) if line.endswith(b"\n") else None


def tell(said: Event) -> None:
    """Send an event to the stage. Any thread."""
    with _writing:
        sys.stdout.buffer.write(encode(said))
        sys.stdout.buffer.flush()


def listen(on_order: Callable[[Order | None], None]) -> None:
    """Call *on_order* with every further order, on a new thread, the last time with None."""

    def run() -> None:
        while (order := read_order()) is not None:
            on_order(order)
        on_order(None)

    threading.Thread(target=run, name="orders", daemon=True).start()
