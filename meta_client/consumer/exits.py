"""A user's functions as a consumer's threads and tasks call them: each call in a context of its own, and nothing that
one raises ends the thread or task that called it."""

import functools
import inspect
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ListenerExited(Exception):
    """The function raised what is no Exception: sys.exit(), a cancellation, an interrupt. It counts as raised: raise an
    exception, or stop the consumer and then exit."""


def failure_of(error: BaseException) -> ListenerExited:
    """*error*, which is no Exception, as a failure like any. On the main thread, where a loop's listeners run and
    Ctrl-C arrives, an exit or an interrupt ends the program: raised."""
    if isinstance(error, SystemExit | KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    return ListenerExited(f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else repr(error))


def contained(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """*function*, each call in a copy of the caller's context. Raises Exceptions alone, but for an exit or an interrupt
    on the main thread; TypeError for a coroutine that was returned and that nobody would await."""

    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            result = copy_context().run(function, *arguments, **named)
        except Exception:
            raise
        except BaseException as error:
            raise failure_of(error) from error
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"{function!r} returned a coroutine, which nobody awaits here: await it in meta_client.aio")
        return result

    return call


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling *function*, a callable object or a partial too, makes a coroutine."""
    return inspect.iscoroutinefunction(_called(function))


def check_plain(topic: str, what: str, function: Callable[..., Any]) -> None:
    """Raises TypeError for a coroutine function, or an asynchronous generator, of which nothing would run."""
    if is_coroutine_function(function) or inspect.isasyncgenfunction(_called(function)):
        raise TypeError(
            f"topic {topic}: {what} {function!r} is a coroutine function, which nobody awaits here: give a plain "
            "function; listeners of meta_client.aio.Client, the client for asyncio, are coroutine functions"
        )


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that runs when *function* is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__
