"""Requests of HTTP to a console that are nearly right: pages, streams, forms, cookies and tokens, one a seed. Pure."""

from dataclasses import dataclass
from random import Random
from urllib.parse import urlencode

from tests.fuzz.streams import damage

PATHS = [
    "/",
    "/transactions",
    "/transactions/branch",
    "/transactions/verdict",
    "/transactions/change",
    "/transactions/diagnosis",
    "/topics",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/orders/0-0/0",
    "/groups",
    "/groups/billing",
    "/groups/billing/reset",
    "/dead-letters",
    "/replication",
    "/journal",
    "/static/console.js",
    "/static/../access.py",
    "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/topics/%ff%00/messages",
]
VALUES = {
    "start": ["0", "100", "-1", "9" * 400, "\u0667"],
    "broker": ["0", "1023", "-1", "99999999999", "\u00b2"],
    "do": ["commit", "rollback", "complete", "forget", "apply", "note", "__class__"],
    "seen": ["", "prepared 0 0 1 - -", "\ud7ff\x00"],
    "why": ["because", "x" * 5000, "\x00\r\n{{ 7 * 7 }}"],
    "partition": ["0-0", "0-3", "1-0", "0", "-", "99999999999999999999-0"],
    "at": ["0", "earliest", "latest", "2026-01-01", "9999-12-31T23:59:59+14:00", "-1", "9" * 5000, "0001-01-01", "nan"],
    "key": ["key", "XID:1:61:62:uq", "XID:", "\u20ac" * 300],
    "id": ["17", "-1", "9" * 30, "1e9", "\u0660"],
    "as": ["json", "hex", "text", "auto", "exe"],
    "where": ["orders", "orders/0-0", "orders/0-0 orders", "/", "orders/9-9", "nope/0-0"],
    "to": ["earliest", "latest", "0", "2026-01-01", "-5 messages", "file:/etc/passwd", "shift:-3", "+1h", "9" * 30],
    "by": ["coordinator", "x"],
}
HEADERS = [
    "Accept: text/event-stream",
    "hx-request: true",
    "Range: bytes=0-1,5-,-3,0-" + "9" * 30,
    "Range: bytes=" + ",".join(f"{each}-{each}" for each in range(800)),
    "If-None-Match: *",
    "If-Modified-Since: Thu, 99 Foo 0000",
    "Accept-Encoding: gzip, \xff",
    "Expect: 100-continue",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    "Upgrade: h2c",
    "Transfer-Encoding: chunked",
    "Content-Length: 18446744073709551616",
    "X-Forwarded-Host: evil.example\r\nForwarded: for=127.0.0.1",
    'Cookie: a=b; c="\\001;; =; $Version=1',
    "X: " + "y" * 9000,
]
METHODS = ["HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PATCH", "get", "G\x00T"]
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Keys:
    """Secrets of one console, and names that are there."""

    port: int
    token: str
    csrf: str
    branch: str


def request(random: Random, keys: Keys) -> bytes:
    """One request, damaged up to three times; now and then none, or only a part of one."""
    if random.random() < 0.03:
        return random.randbytes(random.randrange(1, 300))
    is_post = random.random() < 0.35
    data = bytearray(_post(random, keys) if is_post else _get(random, keys))
    for _ in range(random.choice([0, 0, 1, 2, 3])):
        damage(data, random)
    return bytes(data)


def _query(random: Random, keys: Keys, names: list[str]) -> str:
    values = VALUES | {"key": [*VALUES["key"], keys.branch, keys.branch]}
    pairs = [(name, random.choice(values[name])) for name in names if random.random() < 0.8]
    return urlencode(pairs + random.choices(pairs, k=random.randrange(3)) if pairs else pairs)


def _get(random: Random, keys: Keys) -> bytes:
    names = random.sample(list(VALUES), k=random.randrange(7))
    names += ["broker", "key", "do", "partition", "at"] if random.random() < 0.5 else []
    query = _query(random, keys, names)
    if random.random() < 0.15:
        query += f"&token={random.choice([keys.token, keys.token[:-1], keys.csrf, 'x' * 3000, ''])}"
    method = "GET" if random.random() < 0.9 else random.choice(METHODS)
    return _head(random, keys, method, f"{random.choice(PATHS)}?{query}") + b"\r\n"


def _post(random: Random, keys: Keys) -> bytes:
    """A form that confirms a change, whose *seen* is never what is there: with every secret it changes nothing."""
    names = ["broker", "key", "do", "seen", "why", "where", "to"]
    csrf = random.choice([keys.csrf, keys.csrf, keys.csrf[:-1], keys.token, "", "\xff"])
    body = f"{_query(random, keys, names)}&csrf={csrf}".encode()
    if random.random() < 0.1:
        body += b"&" * random.choice([30, 20_000])
    place = random.choice(["/transactions/change", "/groups/billing/reset", "/groups/%00/reset", "/"])
    head = _head(random, keys, "POST", place) + f"Content-Type: {FORM}\r\n".encode()
    if random.random() < 0.2:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    length = len(body) + random.choice([0, 0, 0, 0, 1, -1, 10**9])
    return head + b"Content-Length: %d\r\n\r\n%b" % (length, body)


def _head(random: Random, keys: Keys, method: str, target: str) -> bytes:
    origin = f"http://127.0.0.1:{keys.port}"
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{keys.port}", "Connection: close"]
    if random.random() < 0.9:
        lines.append(f"Origin: {random.choice([origin, origin, origin, 'null', 'http://evil.example'])}")
    if random.random() < 0.75:
        lines.append(f"Cookie: metaq-console-{keys.port}={keys.token}")
    lines += random.sample(HEADERS, k=random.choice([0, 0, 0, 1, 2]))
    return "".join(f"{line}\r\n" for line in lines).encode("utf-8", "replace")
