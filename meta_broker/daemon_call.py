"""Calls that may hang, as on a file system that does not answer: nobody waits for them at a stop."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_daemon_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Return the result of *call*, made by a thread of its own that ends with the process.

    `asyncio.to_thread` has threads that the end of the loop waits for.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    done.set_running_or_notify_cancel()
    threading.Thread(target=run, name=name, daemon=True).start()
    return done
