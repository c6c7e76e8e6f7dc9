"""Stories on the wire, as transcripts a person can review: every *.txt beside this file is run and compared.

    C1> put orders 0 5 0 -1 7~hello     C1 sends; ~ is CRLF, {00000005 ...} hexadecimal. It opens when first named
    C1< result 200 * 7~{id:a} 0 0       and must get exactly this next; * is any length (the stream proves it right)
    C1< nothing                         and gets nothing for a moment
    close C1                            the connection ends
    kill / stop / start                 the broker: SIGKILL, SIGTERM, start on the same directory and port
    wait 600                            milliseconds

{id:a} is a message id, captured, and the same number wherever it stands again; {hex:a} its 16 hexadecimal digits.
"""

import re
import socket
import time
from pathlib import Path

import pytest

from tests.fixtures.broker import BrokerProcess

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
HEXADECIMAL = re.compile(r"\{([0-9a-f]{8}[0-9a-f ]*)\}")
SILENCE_S = 0.2
ANSWER_S = 60.0


class Wire:
    """One connection, read a frame at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._file = self._socket.makefile("rb")

    def send(self, text: str) -> None:
        parts = HEXADECIMAL.split(text)
        self._socket.sendall(
            b"".join(
                bytes.fromhex(part) if number % 2 else part.replace("~", "\r\n").encode()
                for number, part in enumerate(parts)
            )
        )

    def frame(self) -> str:
        """The next frame as a transcript writes it; messages in hexadecimal; `closed` at the end of the stream."""
        self._socket.settimeout(ANSWER_S)
        try:
            line = self._file.readline()
        except ConnectionResetError:
            line = b""
        if not line:
            return "closed"
        assert line.endswith(b"\r\n"), line
        words = line.decode().split()
        length = int(words[2] if words[0] == "result" else words[1])
        body = self._file.read(length)
        shown = body.hex() if words[0] in ("value", "data") else body.decode().replace("\r\n", "~")
        return f"{line.decode().rstrip()}~{shown}"

    def is_silent(self) -> bool:
        self._socket.settimeout(SILENCE_S)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Story:
    """One transcript, being told."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._wires: dict[str, Wire] = {}
        self._ids: dict[str, int] = {}

    def tell(self, line: str) -> None:
        match line.split(maxsplit=1):
            case ["kill"]:
                self._broker.kill()
                self.close()
            case ["stop"]:
                assert self._broker.stop() == 0
                self.close()
            case ["start"]:
                self._broker.start()
            case ["wait", ms]:
                time.sleep(int(ms) / 1000)
            case ["close", name]:
                self._wires.pop(name).close()
            case [words, text] if words.endswith(">"):
                self._wire(words[:-1]).send(text)
            case [words, "nothing"] if words.endswith("<"):
                assert self._wire(words[:-1]).is_silent(), line
            case [words, text] if words.endswith("<"):
                self._expect(text, self._wire(words[:-1]).frame())
            case _:
                raise AssertionError(f"a transcript has no such line: {line}")

    def _wire(self, name: str) -> Wire:
        if name not in self._wires:
            self._wires[name] = Wire(self._broker.port)
        return self._wires[name]

    def _expect(self, text: str, frame: str) -> None:
        pattern = re.escape(text).replace(r"\ \*\ ", r" \d+ ")
        for name, number in self._ids.items():
            pattern = pattern.replace(rf"\{{id:{name}\}}", str(number))
            pattern = pattern.replace(rf"\{{hex:{name}\}}", f"{number:016x}")
        pattern = re.sub(r"\\{id:(\w+)\\}", r"(?P<\1>\\d+)", pattern)
        pattern = pattern.replace(r"\{port\}", str(self._broker.port)).replace(r"\{any\}", ".*")
        found = re.fullmatch(pattern, frame, re.DOTALL)
        assert found, f"expected {text!r}, got {frame!r}"
        self._ids |= {name: int(value) for name, value in found.groupdict().items()}

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, lone_broker: BrokerProcess) -> None:
    goal, *lines = path.read_text().splitlines()
    assert goal.startswith("# ")
    story = Story(lone_broker)
    try:
        for number, line in enumerate(lines, 2):
            if line.strip() and not line.startswith("#"):
                try:
                    story.tell(line)
                except AssertionError as error:
                    raise AssertionError(f"{path.name}:{number}: {error}") from error
    finally:
        story.close()
