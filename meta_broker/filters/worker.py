"""The process that runs one filter: `python -m meta_broker.filters.worker NAME`. Ends with its broker's pipe.

A filter is an entry point of the group `metaq.filters`: a function `accept(group, message)`, or a class whose objects
have such a method, as the ancestor's have. What it prints goes to the broker's log.
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
Accept = Callable[[str, Message], object]


def load(name: str) -> Accept:
    """The filter called *name*. Raises LookupError if there is none, and whatever its own code raises."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise LookupError(f"no installed package has an entry point {name!r} in the group {GROUP}")
    loaded = found[0].load()
    accept: Accept = loaded().accept if isinstance(loaded, type) else loaded
    if not callable(accept):
        raise TypeError(f"{found[0].value} is neither a function accept(group, message) nor a class with one")
    return accept


def judge(accept: Accept, group: str, chunk: bytes) -> tuple[list[tuple[int, bool]], str]:
    """For every whole message of *chunk* its end and whether it is accepted; and what the filter raised last.

    A message that it raises at is rejected (spec 4.8); one that nobody can read is let through: its reader says why.
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


def serve(name: str, ear: BinaryIO, mouth: BinaryIO) -> None:
    """Answer until the broker hangs up."""
    try:
        accept = load(name)
    except Exception as error:
        _say(mouth, f"{type(error).__name__}: {error}")
        return
    _say(mouth, "")
    questions: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()  # one at a time, as the broker asks
    threading.Thread(target=_hear, args=(ear, questions), daemon=True).start()
    while True:
        group, chunk = questions.get()
        verdicts, raised = judge(accept, group, chunk)
        text = _text(raised)
        mouth.write(ANSWER.pack(len(verdicts), len(text)))
        mouth.write(b"".join(VERDICT.pack(end, is_accepted) for end, is_accepted in verdicts) + text)
        mouth.flush()


def _hear(ear: BinaryIO, questions: "queue.SimpleQueue[tuple[str, bytes]]") -> None:
    """Beside the filter, which may never return: when the broker is gone, so is this process."""
    while len(head := ear.read(QUESTION.size)) == QUESTION.size:
        group_bytes, chunk_bytes = QUESTION.unpack(head)
        group = ear.read(group_bytes).decode(errors="replace")
        questions.put((group, ear.read(chunk_bytes)))
    os._exit(0)


def _say(mouth: BinaryIO, text: str) -> None:
    encoded = _text(text)
    mouth.write(LENGTH.pack(len(encoded)) + encoded)
    mouth.flush()


def _text(text: str) -> bytes:
    return " ".join(text.split()).encode(errors="replace")[:TEXT_BYTES_MAX]


def main() -> None:
    """Keep the pipes for ourselves: whatever the filter prints must not get between our answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which hangs up
    ear, mouth = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # a process that is killed flushes nothing
    serve(sys.argv[1], ear, mouth)


if __name__ == "__main__":
    main()
