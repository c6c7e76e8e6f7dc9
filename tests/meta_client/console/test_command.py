"""The command: the URL that it prints lets in, it ends when told, and it refuses what would let strangers in."""

import asyncio
import contextlib
import re
import signal
import socket
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from meta_client.console.connection import CONNECTIONS_MAX, ConsoleConnection
from meta_client.console.live import STREAMS_MAX
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import wait_until
from tests.meta_client.console.conftest import started_console
from zk.embedded.chroot import Chroot


def test_its_url_lets_in_and_sigterm_ends_it_with_a_page_live(zookeeper: Chroot) -> None:
    with tempfile.NamedTemporaryFile() as out:
        process, url = started_console(zookeeper.connect, out)
        try:
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(url) as page:
                assert "token" not in page.url
                assert b"ZooKeeper knows no broker" in page.read()
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url.partition("?")[0])
            assert refused.value.code == 401
            refused.value.close()
            live = urllib.request.Request(url.partition("?")[0], headers={"Accept": "text/event-stream"})
            with opener.open(live) as stream:
                assert stream.readline() == b"event: page\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 143
        finally:
            process.kill()
            process.wait()
        said = Path(out.name).read_text()
        assert "it only reads" in said
        assert "Traceback" not in said


def test_requests_that_never_end_keep_nobody_out(zookeeper: Chroot) -> None:
    """Half heads, nothing at all, and bodies that trickle after their refusal: more of each than may be connected."""
    with tempfile.NamedTemporaryFile() as out, contextlib.ExitStack() as stack:
        process, url = started_console(zookeeper.connect, out)
        port = int(re.findall(r":(\d+)/", url)[0])
        head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port
        try:
            for said in (head, b"", head + b"Content-Length: 100000\r\n\r\nx", b"no request\r\n\r\n"):
                for _ in range(CONNECTIONS_MAX + 20):
                    half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    with contextlib.suppress(ConnectionError):
                        half.sendall(said)
                for _ in range(5):
                    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
                    with opener.open(url, timeout=60) as page:
                        assert page.status == 200
        finally:
            process.kill()
            process.wait()
        assert Path(out.name).read_text().count("\n") == 2, "strangers write no log"


def test_a_body_that_is_none_or_never_comes_ends_its_connection_and_is_not_logged(zookeeper: Chroot) -> None:
    """Before its answer, which is 4xx then, and after it; with the token and without."""
    with tempfile.NamedTemporaryFile() as out:
        process, url = started_console(zookeeper.connect, out, "--allow-changes")
        port, token = int(re.findall(r":(\d+)/", url)[0]), url.partition("token=")[2]
        at = f"Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
        form = f"Cookie: metaq-console-{port}={token}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        try:
            for more in ("", form):
                head = f"POST /groups/g/reset HTTP/1.1\r\n{at}{more}Transfer-Encoding: chunked\r\n\r\n"
                for pieces in ([head + "no chunk\r\n"], [head, "no chunk\r\n"], [head + "2\r\na", "=zz\r\n"]):
                    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
                        for piece in pieces:
                            peer.sendall(piece.encode())
                            time.sleep(0.3)
                        answer = b"".join(iter(lambda: peer.recv(65536), b""))
                    assert answer.startswith(b"HTTP/1.1 4"), answer[:200]
            with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
                peer.sendall(f"POST /groups/g/reset HTTP/1.1\r\n{at}{form}Content-Length: 99\r\n\r\na=b".encode())
                assert peer.recv(65536).startswith(b"HTTP/1.1 408 "), "half a form"
        finally:
            process.kill()
            process.wait()
        assert Path(out.name).read_text().count("\n") == 2, "strangers write no log"


def test_a_request_of_two_lengths_is_refused_and_ends_its_connection(zookeeper: Chroot) -> None:
    """A proxy that goes by the other length would take the rest for a request of somebody else."""
    with tempfile.NamedTemporaryFile() as out:
        process, url = started_console(zookeeper.connect, out, "--allow-changes")
        port = int(re.findall(r":(\d+)/", url)[0])
        lengths = "Content-Length: 50\r\nTransfer-Encoding: chunked"
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n{lengths}\r\n\r\n"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
                peer.sendall(f"{head}0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                answers = b"".join(iter(lambda: peer.recv(65536), b""))
        finally:
            process.kill()
            process.wait()
        assert re.findall(rb"HTTP/1.1 (\d+) ", answers) == [b"400"], answers


def test_a_connection_without_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that sends a byte of it now and then; not one whose answer takes longer."""
    monkeypatch.setattr("meta_client.console.connection.REQUEST_S_MAX", 0.5)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(1.5)
        await PlainTextResponse("late")(scope, receive, send)

    async def trickling(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            for _ in range(600):
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.1)
            raise AssertionError("it is still open after a minute")

    async def asking(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await reader.readuntil(b"late")
        assert await reader.read() == b"", "after it, nothing was asked for"
        writer.close()
        return answer

    async def run() -> None:
        config = uvicorn.Config(slow, http=ConsoleConnection, lifespan="off", ws="none", log_config=None)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            port = listener.getsockname()[1]
            _, answer = await asyncio.gather(trickling(port), asking(port))
            assert b"200 OK" in answer
            server.should_exit = True
            await serving

    asyncio.run(run())


def test_live_pages_are_bounded(zookeeper: Chroot) -> None:
    with tempfile.NamedTemporaryFile() as out:
        process, url = started_console(zookeeper.connect, out)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(url).close()
        live = urllib.request.Request(url.partition("?")[0], headers={"Accept": "text/event-stream"})
        streams = [opener.open(live) for _ in range(STREAMS_MAX)]
        try:
            with pytest.raises(urllib.error.HTTPError) as refused:
                opener.open(live)
            assert refused.value.code == 503
            refused.value.close()
            assert opener.open(url).status == 200  # pages are served all the same
            streams.pop().close()
            wait_until(lambda: _opens(opener, live), "the place of the closed one is free")
        finally:
            process.kill()
            process.wait()
            for stream in streams:
                stream.close()


def _opens(opener: urllib.request.OpenerDirector, live: urllib.request.Request) -> bool:
    try:
        opener.open(live).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


def test_a_token_of_its_own_is_not_printed(zookeeper: Chroot, tmp_path: Path) -> None:
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("0123456789abcdef0123\n")
    with tempfile.NamedTemporaryFile() as out:
        process, url = started_console(zookeeper.connect, out, "--token-file", str(tmp_path / "token"))
        process.kill()
        process.wait()
        assert url.endswith("/")
        assert "0123456789" not in Path(out.name).read_text()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--host", "192.0.2.1", "--insecure"], "cannot listen at 192.0.2.1"),
        (["--token-file", "short"], "holds no token"),
        (["--token-file", "shared"], "others than its owner may read"),
    ],
)
def test_what_it_refuses(words: list[str], error: str, zookeeper: Chroot, tmp_path: Path) -> None:
    for name, mode, text in (("short", 0o600, "1234"), ("shared", 0o640, "0123456789abcdef0123")):
        (tmp_path / name).touch(mode=mode)
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / word) if word in ("short", "shared") else word for word in words]
    done = run_metaq("console", "--zk", zookeeper.connect, *given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert error in done.stderr
