"""Isolation of users' functions: each call runs in its own context, and no exception ends the calling thread or
task."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any, TypeVar

from meta_client.errors import text_of

Argument = TypeVar("Argument")
_Result = TypeVar("_Result")


class ListenerExited(Exception):
    """A function raised something other than an Exception: sys.exit(), a cancellation, an interrupt. It counts as a
    failure: raise an exception, or stop the consumer and then exit."""


def listener_error(error: BaseException) -> ListenerExited:
    """Wrap *error*, which is no Exception, as a failure. On the main thread, where a loop's listeners run and Ctrl-C
    arrives, raise an exit or an interrupt instead: it ends the program."""
    if isinstance(error, SystemExit | KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    return ListenerExited(f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else text_of(error))


@contextlib.contextmanager
def exits_as_errors() -> Iterator[None]:
    """Have a block that calls a user's object raise only Exceptions, with the exceptions of listener_error."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise listener_error(error) from error


def isolated(function: Callable[[Argument], _Result]) -> Callable[[Argument], _Result]:
    """Wrap *function* so that each call runs in a copy of the caller's context. The wrapper raises only Exceptions,
    except for an exit or an interrupt on the main thread; TypeError if *function* returned a coroutine.

    Takes one argument: it is called for each message, and passing any number of arguments would cost more than the
    copy.
    """

    def call(argument: Argument) -> _Result:
        try:
            result = copy_context().run(function, argument)
        except Exception:
            raise
        except BaseException as error:
            raise listener_error(error) from error
        if result is not None and inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"{function!r} returned a coroutine, which nobody awaits here: await it in meta_client.aio")
        return result

    return call


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """True if calling *function*, a callable object or a partial too, makes a coroutine."""
    return inspect.iscoroutinefunction(_called(function))


def check_plain(topic: str, what: str, function: Callable[..., Any]) -> None:
    """Raise TypeError for a coroutine function or an asynchronous generator, which would never run, and for what is no
    function."""
    if not callable(function):
        raise TypeError(f"topic {topic}: {what} {function!r} can't be called: give a function")
    if is_coroutine_function(function) or inspect.isasyncgenfunction(_called(function)):
        raise TypeError(
            f"topic {topic}: {what} {function!r} is a coroutine function, which nobody awaits here: give a plain "
            "function; listeners of meta_client.aio.Client, the client for asyncio, are coroutine functions"
        )


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that runs when *function* is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__
