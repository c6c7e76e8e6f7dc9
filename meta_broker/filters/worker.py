"""The process that runs one filter: `python -m meta_broker.filters.worker NAME`. Ends with its broker's pipe.

A filter is an entry point of the group `metaq.filters`: a function `accept(group, message)`, or a class whose objects
have such a method, like the ancestor's. Its standard output goes to the broker's log.
"""

import io
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import BinaryIO

from meta_broker.filters.pipe import ANSWER, LENGTH, QUESTION, TEXT_BYTES_MAX, VERDICT
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import Message, iter_frames

GROUP = "metaq.filters"
FilterFunction = Callable[[str, Message], object]


def load(name: str) -> FilterFunction:
    """Load the filter *name*. Raises LookupError if there is none, and whatever its own code raises."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise LookupError(f"no installed package has an entry point {name!r} in the group {GROUP}")
    loaded = found[0].load()
    accept: FilterFunction = loaded().accept if isinstance(loaded, type) else loaded
    if not callable(accept):
        raise TypeError(f"{found[0].value} is neither a function accept(group, message) nor a class with one")
    return accept


def evaluate(accept: FilterFunction, group: str, chunk: bytes) -> tuple[list[tuple[int, bool]], str]:
    """Return end and verdict of every whole message of *chunk*, and the filter's last exception.

    A message at which it raises is rejected (spec 4.8); an unreadable one is accepted: its reader reports why.
    """
    verdicts: list[tuple[int, bool]] = []
    raised = ""
    position = 0
    while True:
        try:
            for _, end, message in iter_frames(chunk[position:], position):
                position = end
                try:
                    is_accepted = bool(accept(group, message))
                except Exception as error:
                    raised, is_accepted = f"{type(error).__name__}: {error}", False
                verdicts.append((end, is_accepted))
            return verdicts, raised
        except InvalidMessage as error:
            if error.next_offset is None:
                return verdicts, raised
            position = error.next_offset
            verdicts.append((position, True))


def serve(name: str, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the broker closes the pipe."""
    try:
        accept = load(name)
    except Exception as error:
        _say(replies, f"{type(error).__name__}: {error}")
        return
    _say(replies, "")
    questions: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()  # one at a time, as the broker asks
    threading.Thread(target=_hear, args=(requests, questions), daemon=True).start()
    while True:
        group, chunk = questions.get()
        verdicts, raised = evaluate(accept, group, chunk)
        text = _text(raised)
        replies.write(ANSWER.pack(len(verdicts), len(text)))
        replies.write(b"".join(VERDICT.pack(end, is_accepted) for end, is_accepted in verdicts) + text)
        replies.flush()


def _hear(requests: BinaryIO, questions: "queue.SimpleQueue[tuple[str, bytes]]") -> None:
    """Read requests on a thread, since the filter may never return; end the process when the broker closes the pipe."""
    while len(head := requests.read(QUESTION.size)) == QUESTION.size:
        group_bytes, chunk_bytes = QUESTION.unpack(head)
        group = requests.read(group_bytes).decode(errors="replace")
        questions.put((group, requests.read(chunk_bytes)))
    os._exit(0)


def _say(replies: BinaryIO, text: str) -> None:
    encoded = _text(text)
    replies.write(LENGTH.pack(len(encoded)) + encoded)
    replies.flush()


def _text(text: str) -> bytes:
    return " ".join(text.split()).encode(errors="replace")[:TEXT_BYTES_MAX]


def main() -> None:
    """Run the worker on private copies of the pipes: the filter's output must not mix with the replies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which closes the pipe
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # a killed process flushes nothing
    serve(sys.argv[1], requests, replies)


if __name__ == "__main__":
    main()
