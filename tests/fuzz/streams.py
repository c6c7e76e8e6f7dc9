"""Byte streams that are nearly, but seldom quite, what the other side expects: pure, one a seed."""

import re
import tomllib
from pathlib import Path
from random import Random
from typing import Any

_WIRE = tomllib.loads((Path(__file__).parents[1] / "vectors" / "wire.toml").read_text())
_NUMBERS = [b"0", b"-1", b"1", b"7", b"-2147483648", b"2147483647", b"2147483648", b"9223372036854775807", b"9" * 40]
_TOKENS = [
    b"",
    b" ",
    b"\r",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b":",
    b"null",
    b"put ",
    b"mput ",
    b"value ",
    b"result 200 ",
]
_CHUNKS = (1, 2, 3, 7, 100, 4096)
_MUTATIONS_MAX = 4
_VECTORS_MAX = 6


def _bytes_of(vector: dict[str, Any]) -> bytes:
    if "wire_hex" in vector:
        return bytes.fromhex(vector["wire_hex"])
    parts = re.split(r"\{([0-9a-f ]*)\}", vector["wire"])
    return b"".join(
        bytes.fromhex(part) if number % 2 else part.replace("~", "\r\n").encode() for number, part in enumerate(parts)
    )


REQUESTS = [_bytes_of(vector) for vector in _WIRE["request"]]
RESPONSES = [_bytes_of(vector) for vector in _WIRE["response"]]


def stream(random: Random, vectors: list[bytes]) -> bytes:
    """A few of *vectors* one behind the other, damaged here and there; now and then no vector at all."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(300))
    data = bytearray(b"".join(random.choices(vectors, k=random.randint(1, _VECTORS_MAX))))
    for _ in range(random.randint(0, _MUTATIONS_MAX)):
        damage(data, random)
    return bytes(data)


def damage(data: bytearray, random: Random) -> None:
    """Change *data* at one place."""
    at = random.randrange(len(data) + 1)
    end = min(len(data), at + random.randint(1, 30))
    match random.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1:
            del data[at:end]
        case 2:
            data[at:at] = data[at:end]
        case 3:
            data[at:at] = random.choice(_TOKENS)
        case 4:
            data[at:at] = random.randbytes(random.randint(1, 40))
        case 5:
            numbers = [match.span() for match in re.finditer(rb"-?\d+", data)]
            if numbers:
                start, stop = random.choice(numbers)
                data[start:stop] = random.choice(_NUMBERS)
        case _:
            del data[at:]


def cuts(data: bytes, random: Random) -> list[bytes]:
    """*data* in pieces: of one length, or of any."""
    if random.random() < 0.5:
        size = random.choice(_CHUNKS)
        return [data[at : at + size] for at in range(0, len(data), size)]
    places = sorted(random.choices(range(len(data) + 1), k=random.randrange(6)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
