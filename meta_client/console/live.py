"""Server-sent events: the live part of a page, again and again, until the browser leaves or a time limit ends it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from meta_client.console.page import Asked, InvalidQuery, NotHere, Page
from meta_client.console.rendering import render

STREAMS_MAX: Final = 32
STREAM_S_MAX: Final = 1800.0  # then the browser opens another one
LOOK_S: Final = 0.1  # a stop waits so long
TOO_MANY: Final = f"{STREAMS_MAX} pages are live already: close one, or reload this one by hand.\n"


class Streams:
    """Open streams of a console. Event loop only."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        """*is_stopping*: True once the server is to end, and its streams with it."""
        self._is_stopping = is_stopping
        self._count = 0

    def open(self, page: Page, asked: Asked, values: dict[str, object]) -> Response:
        """Return the stream of a page, or a refusal. *values*: what every template gets."""
        if self._count >= STREAMS_MAX:
            return PlainTextResponse(TOO_MANY, 503, {"Retry-After": "60"})
        self._count += 1
        return _Stream(self._events(page, asked, values), self._closed)

    def _closed(self) -> None:
        self._count -= 1

    async def _events(self, page: Page, asked: Asked, values: dict[str, object]) -> AsyncIterator[str]:
        until, last = time.monotonic() + STREAM_S_MAX, ""
        while time.monotonic() < until:
            try:
                found = await page.read(asked)
            except (NotHere, InvalidQuery):
                return
            text = await asyncio.to_thread(render, f"parts/{page.template}", **values, **found)
            if "sample" in found:
                yield event("sample", json.dumps(found["sample"]))
            yield event("page", text) if text != last else ":\n\n"
            last = text
            due = time.monotonic() + page.live_s
            while time.monotonic() < due:
                if self._is_stopping():
                    return
                await asyncio.sleep(LOOK_S)


class _Stream(StreamingResponse):
    """Calls *closed* once, however it ends."""

    def __init__(self, events: AsyncIterator[str], closed: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()


def event(name: str, data: str) -> str:
    """Return one event; *data* may have any line ends."""
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n"
