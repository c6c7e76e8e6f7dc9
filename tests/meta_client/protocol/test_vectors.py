"""Golden vectors, both ways: whole, one byte at a time, cut at every position; and PROTOCOL.md shows no others."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import meta_client.protocol
from journal.records.producer_state import BatchSequence
from journal.records.xid import parse_key
from meta_client.protocol import requests, responses
from meta_client.protocol.checksum import crc31
from meta_client.protocol.compression import codec_of
from meta_client.protocol.decoder import RequestDecoder, ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.messages import Message, decode_body, encode_body, encode_frame, iter_frames
from meta_client.protocol.requests import Dropped, Request
from meta_client.protocol.responses import Response
from tests.fixtures.responses import encode_response

pytestmark = pytest.mark.usefixtures("either_core")

VECTORS = tomllib.loads((Path(__file__).parents[2] / "vectors" / "wire.toml").read_text())
PROTOCOL_MD = Path(meta_client.protocol.__file__).with_name("PROTOCOL.md")
Command = Request | Response


@dataclass(frozen=True)
class Vector:
    """One command in its two forms."""

    name: str
    wire: bytes
    command: Command
    is_written: bool  # whether the encoder writes it like this
    bytes_stated: int | None

    def new_decoder(self) -> RequestDecoder | ResponseDecoder:
        return ResponseDecoder() if isinstance(self.command, Response) else RequestDecoder()


def to_wire(text: str) -> bytes:
    """~ is CRLF, {...} is hexadecimal."""
    parts = re.split(r"\{([0-9a-f ]*)\}", text)
    return b"".join(
        bytes.fromhex(part) if number % 2 else part.replace("~", "\r\n").encode() for number, part in enumerate(parts)
    )


VERBS: dict[type[Any], Callable[[str], Any]] = {
    requests.TopicCommand: requests.TopicVerb,
    requests.BranchCommand: requests.BranchVerb,
    requests.TransactionCommand: requests.TransactionVerb,
}


def to_command(kind: type[Any], given: dict[str, Any]) -> Command:
    absent = dict.fromkeys(("checksum", "key", "timeout_seconds", "qualifier", "sequence", "epoch", "behind"))
    values: dict[str, Any] = absent | {"evidence": ""} | given
    for name in ("body", "message"):
        if name in values:
            values[name] = values[name].encode()
    if "body_hex" in values:
        values["body"] = bytes.fromhex(values["body_hex"])
    if "wanted_hex" in values:
        values["wanted"] = bytes.fromhex(values["wanted_hex"])
    if values["key"] is not None:
        values["key"] = parse_key(values["key"])
    if values["sequence"] is not None:
        values["sequence"] = BatchSequence(*values["sequence"])
    if values["behind"] is not None:
        values["behind"] = responses.Behind(*values["behind"])
    if "verb" in values:
        values["verb"] = VERBS[kind](values["verb"])
    if "settings" in values:
        values["settings"] = tuple(map(tuple, values["settings"]))
    names = set(kind.__struct_fields__)
    assert given.keys() - {"body_hex", "wanted_hex"} <= names
    command: Command = kind(**{name: values[name] for name in names})
    return command


def to_vector(entry: dict[str, Any], module: Any) -> Vector:
    wire = bytes.fromhex(entry["wire_hex"]) if "wire_hex" in entry else to_wire(entry["wire"])
    command = to_command(getattr(module, entry["is"]), entry["fields"])
    return Vector(entry["name"], wire, command, not entry.get("decode_only", False), entry.get("bytes"))


REQUESTS = [to_vector(entry, requests) for entry in VECTORS["request"]]
RESPONSES = [to_vector(entry, responses) for entry in VECTORS["response"]]
each_vector = pytest.mark.parametrize("vector", REQUESTS + RESPONSES, ids=lambda vector: vector.name)
each_frame = pytest.mark.parametrize("frame", VECTORS["frame"], ids=lambda frame: frame["name"])


@pytest.mark.scenario("T09")
@each_vector
def test_decodes_whole(vector: Vector) -> None:
    decoder = vector.new_decoder()
    assert decoder.receive_data(vector.wire) == [vector.command]
    assert decoder.is_between_commands
    assert vector.bytes_stated in (None, len(vector.wire))


@each_vector
def test_decodes_one_byte_at_a_time(vector: Vector) -> None:
    decoder = vector.new_decoder()
    decoded = [decoder.receive_data(bytes([byte])) for byte in vector.wire]
    assert decoded == [[]] * (len(vector.wire) - 1) + [[vector.command]]


@each_vector
def test_decodes_cut_at_every_position(vector: Vector) -> None:
    for cut in range(1, len(vector.wire)):
        decoder = vector.new_decoder()
        assert decoder.receive_data(vector.wire[:cut]) == []
        assert not decoder.is_between_commands
        assert decoder.receive_data(vector.wire[cut:]) == [vector.command]
        assert decoder.is_between_commands


@each_vector
def test_decodes_after_another_cut_at_every_position(vector: Vector) -> None:
    twice = vector.wire * 2
    for cut in range(1, len(twice)):
        decoder = vector.new_decoder()
        assert decoder.receive_data(twice[:cut]) + decoder.receive_data(twice[cut:]) == [vector.command] * 2


@pytest.mark.scenario("T09")
@each_vector
def test_encodes(vector: Vector) -> None:
    command = vector.command
    wire = encode_response(command) if isinstance(command, Response) else b"".join(encode_request(command))
    if vector.is_written:
        assert wire == vector.wire
    else:
        decoder = vector.new_decoder()
        assert decoder.receive_data(wire) == [command]


@pytest.mark.parametrize("vectors", [REQUESTS, RESPONSES], ids=["requests", "responses"])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 16, 64, 1000, 100_000])
def test_decodes_a_pipeline_in_chunks_of_any_size(vectors: list[Vector], step: int) -> None:
    stream = b"".join(vector.wire for vector in vectors)
    decoder = vectors[0].new_decoder()
    decoded: list[Command | Dropped] = []
    for start in range(0, len(stream), step):
        decoded += decoder.receive_data(stream[start : start + step])
    assert decoded == [vector.command for vector in vectors]


@each_frame
def test_frame_both_ways(frame: dict[str, Any]) -> None:
    wire, payload, attribute = bytes.fromhex(frame["hex"]), frame["payload"].encode(), frame.get("attribute")
    codec = codec_of(frame["codec"]) if "codec" in frame else None
    flag, body = encode_body(payload, attribute, codec)
    assert flag == frame["flag"]
    if codec is None:
        assert encode_frame(frame["id"], flag, body) == wire
    else:  # a codec's next release may choose other bytes
        assert decode_body(flag, body) == (attribute, payload)
    assert frame.get("bytes") in (None, len(wire))
    message = Message(frame["id"], flag, attribute, payload)
    for buffer in (wire, bytearray(wire), memoryview(wire)):
        assert list(iter_frames(buffer, 1000)) == [(1000, 1000 + len(wire), message)]


def test_frames_cut_at_every_position() -> None:
    wires = [bytes.fromhex(frame["hex"]) for frame in VECTORS["frame"]]
    stream = b"".join(wires)
    ends = [sum(map(len, wires[: count + 1])) for count in range(len(wires))]
    whole = list(iter_frames(stream))
    assert [end for _, end, _ in whole] == ends
    for cut in range(len(stream) + 1):
        assert list(iter_frames(stream[:cut])) == whole[: sum(end <= cut for end in ends)]


@pytest.mark.parametrize("entry", VECTORS["checksum"], ids=lambda entry: entry["text"])
def test_crc31(entry: dict[str, Any]) -> None:
    assert crc31(entry["text"].encode()) == entry["crc31"]


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PROTOCOL_MD.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in found for line in block.splitlines()]


def test_the_document_shows_vectors_and_nothing_else() -> None:
    sides = {"C: ": {vector.wire for vector in REQUESTS}, "B: ": {vector.wire for vector in RESPONSES}}
    shown = [(line, to_wire(line[3:]) in sides[line[:3]]) for line in blocks("wire")]
    assert shown
    assert [line for line, is_vector in shown if not is_vector] == []
    assert [bytes.fromhex(line) in sides["B: "] for line in blocks("hex")] == [True]
    assert blocks("frame") == [frame["hex"] for frame in VECTORS["frame"]]


def test_the_document_shows_every_worked_example() -> None:
    shown = {to_wire(line[3:]) for line in blocks("wire")} | {bytes.fromhex(line) for line in blocks("hex")}
    examples = [vector for vector in REQUESTS + RESPONSES if re.match(r"1\.9|2\.2 (begin|recover)", vector.name)]
    assert len(examples) == 19
    assert [vector.name for vector in examples if vector.wire not in shown] == []
