"""An object store that is away for a moment is no empty one: its manifest is kept.

The store speaks WebHDFS over HTTP. Its name node refuses to say whether the manifest is there, as one in standby does.
"""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from journal.archive.keeper import SegmentKeeper
from journal.archive.manifest import NAME, decode_archive_manifest
from journal.archive.object_place import ObjectPlace
from journal.errors import StorageFailed
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import DirectoryStorage

pytest.importorskip("fsspec")

SIZE = 4096


def failure(kind: str, message: str) -> bytes:
    return json.dumps({"RemoteException": {"exception": kind, "message": message}}).encode()


class NameNode(ThreadingHTTPServer):
    """Name node and data node in one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.files: dict[str, bytes] = {}
        self.is_standby_for: str | None = None  # the name of a file

    @property
    def url(self) -> str:
        return f"webhdfs://tests@127.0.0.1:{self.server_address[1]}/archive"

    def answer(self, verb: str, target: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(target)
        path, query = parts.path.removeprefix("/webhdfs/v1"), dict(parse_qsl(parts.query))
        match verb, query["op"]:
            case "GET", "GETFILESTATUS" if path.endswith(f"/{self.is_standby_for}"):
                return 403, {}, failure("StandbyException", "READ is not supported in state standby")
            case "GET", "GETFILESTATUS" | "OPEN" if path not in self.files:
                return 404, {}, failure("FileNotFoundException", path)
            case "GET", "GETFILESTATUS":
                return 200, {}, json.dumps({"FileStatus": {"type": "FILE", "length": len(self.files[path])}}).encode()
            case "GET", "LISTSTATUS":
                found = [
                    {"type": "FILE", "length": len(data), "pathSuffix": name.rpartition("/")[2]}
                    for name, data in self.files.items()
                ]
                return 200, {}, json.dumps({"FileStatuses": {"FileStatus": found}}).encode()
            case "GET", "OPEN":
                offset = int(query["offset"])
                return 200, {}, self.files[path][offset : offset + int(query["length"])]
            case ("PUT", "CREATE") | ("POST", "APPEND") if "there" not in query:
                return 307, {"Location": f"http://127.0.0.1:{self.server_address[1]}{target}&there=1"}, b""
            case "PUT", "CREATE":
                self.files[path] = b""
                return 201, {}, b""
            case "POST", "APPEND":
                self.files[path] += body
                return 200, {}, b""
            case "PUT", "RENAME":
                self.files[query["destination"]] = self.files.pop(path)
                return 200, {}, b'{"boolean": true}'
        raise AssertionError(target)


class _Request(BaseHTTPRequestHandler):
    def _do(self) -> None:
        assert isinstance(self.server, NameNode)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, answer = self.server.answer(self.command, self.path, body)
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST = _do  # noqa: N815 - the base class's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        del format, args


@pytest.fixture
def node() -> Iterator[NameNode]:
    with NameNode() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_manifest_outlives_a_store_that_does_not_say_whether_it_is_there(tmp_path: Path, node: NameNode) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    segments = Segments.open(storage, JournalIdentity("shop", 3), SIZE, writable=True)
    for _ in range(4):
        segments.roll()
    assert segments.drop_before(2 * SIZE, SegmentKeeper(ObjectPlace(node.url))) == 2

    node.is_standby_for = NAME
    place = ObjectPlace(node.url)
    with pytest.raises(StorageFailed, match="standby"):
        place.read(NAME)
    with pytest.raises(StorageFailed, match="standby"):
        segments.drop_before(3 * SIZE, SegmentKeeper(place))
    assert next(base for base, _ in segments) == 2 * SIZE, "kept here"

    node.is_standby_for = None
    assert segments.drop_before(3 * SIZE, SegmentKeeper(place)) == 1
    manifest = place.read(NAME)
    assert manifest is not None
    assert [entry.base for entry in decode_archive_manifest(manifest).entries] == [0, SIZE, 2 * SIZE]
    segments.close()
    storage.close()
