"""Prevents a forked child from using clients that its parent made.

Parent and child would share one socket and read each other's replies, and the child has none of the clients' threads.
So each copy becomes an `Inherited` in the child: using it raises CreatedBeforeFork, and leaving its `with` block does
nothing. The parent, and new objects in the child, are unaffected.
"""

import functools
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, Protocol, TypeVar, cast

Leave = TypeVar("Leave", bound=Callable[..., Any])

_inherited_kinds: set[type] = set()
_made: "weakref.WeakKeyDictionary[object, Callable[[], None] | None]" = weakref.WeakKeyDictionary()


class CreatedBeforeFork(RuntimeError):
    """The object belongs to the process that this one was forked from. Make a new one here."""


def invalidate_after_fork(thing: object, detach: Callable[[], None] | None = None) -> None:
    """Turn *thing*, of a plain class, into an Inherited in every process forked from this one.

    *detach* runs there first, to disable the child's copies of descriptors. It must not reference *thing*.
    """
    _made[thing] = detach


class ProcessBound:
    """Base of objects with threads and sockets, which are neither pickled nor copied."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} belongs to its process, and can't be pickled or copied: make one where it is used"
        )


class HasDescriptor(Protocol):
    """A socket or a file; `fileno` is -1 once it is closed."""

    def fileno(self) -> int: ...


def detach_descriptor(file: HasDescriptor) -> None:
    """Replace a descriptor by /dev/null. For the child's copy.

    The child cannot reach the parent's peer any more, and the peer sees the connection end when the parent closes it.
    Shutting the socket down instead would end the parent's connection.
    """
    if (fd := file.fileno()) < 0:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, fd, inheritable=False)
    os.close(null)


class Inherited:
    """An object of the parent as seen in the child: every use raises CreatedBeforeFork, `close` does nothing."""

    _was = ""

    def __getattribute__(self, name: str) -> Any:
        if name == "close":
            return _nothing
        if not name.startswith("__"):
            _refuse(self)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(self)

    def __enter__(self) -> NoReturn:
        _refuse(self)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Do nothing, since the parent's block continues; raise for a transaction, which must not seem committed."""
        if error is None and type(self)._was.endswith("Transaction"):
            _refuse(self)

    async def __aenter__(self) -> NoReturn:
        _refuse(self)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def __iter__(self) -> NoReturn:
        _refuse(self)

    def __aiter__(self) -> NoReturn:
        _refuse(self)


def skip_after_fork(leave: Leave) -> Leave:
    """Decorate `__exit__` or `__aexit__`, which Python looks up on entry to the block: before the fork."""

    @functools.wraps(leave)
    def call(self: object, *arguments: Any) -> Any:
        leaves = getattr(type(self), leave.__name__) if type(self) in _inherited_kinds else leave
        return leaves(self, *arguments)

    return cast(Leave, call)


class _Nothing:
    """Result of closing an inherited object, awaitable for asyncio clients."""

    def __await__(self) -> Any:
        return iter(())


def _nothing() -> _Nothing:
    return _Nothing()


def _refuse(thing: Any) -> NoReturn:
    raise CreatedBeforeFork(f"this {type(thing)._was} was made before fork, by the parent process: make a new one here")


@functools.cache
def _inherited(kind: type) -> type:
    # `__class__` can only be set to a class with the same bases and layout.
    names = {name: value for name, value in vars(Inherited).items() if name not in ("__dict__", "__weakref__")}
    made = type(f"Inherited{kind.__name__}", kind.__bases__, names | {"_was": kind.__name__.lstrip("_")})
    _inherited_kinds.add(made)
    return made


def _in_child() -> None:
    for detach in list(_made.values()):
        if detach is not None:
            with suppress(OSError):  # closed before the fork
                detach()
    for thing in list(_made):
        kind: type = type(thing)
        thing.__class__ = _inherited(kind)
    _made.clear()


os.register_at_fork(after_in_child=_in_child)
