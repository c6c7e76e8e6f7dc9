"""Keeps a forked child from using objects that were made before the fork and belong to the parent alone.

Parent and child would speak on one socket and take each other's answers, and the child has none of the threads that its
copies rely on. So in the child they become `Inherited`: whatever is asked of one raises MadeBeforeFork, and leaving a
block with it changes nothing. That costs the parent nothing, and whoever makes new ones in the child nothing either.
"""

import functools
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypeVar, cast

Leave = TypeVar("Leave", bound=Callable[..., Any])

_inherited_kinds: set[type] = set()
_made: "weakref.WeakKeyDictionary[object, Callable[[], None] | None]" = weakref.WeakKeyDictionary()


class MadeBeforeFork(RuntimeError):
    """It was made in the process that this one was forked from, and can only be used there. Make a new one here."""


def made_here(thing: object, let_go: Callable[[], None] | None = None) -> None:
    """Have *thing*, of a plain class, become Inherited in every process that is forked from this one.

    *let_go* is called there first, for the child's copies of descriptors (`blank`). It must not hold *thing*.
    """
    _made[thing] = let_go


class HasDescriptor(Protocol):
    """A socket, or what stands for one; -1 once it is closed."""

    def fileno(self) -> int: ...


def blank(file: HasDescriptor) -> None:
    """In the child: put /dev/null in place of its copy of a descriptor.

    Nothing that still holds the number can reach the parent's peer by it; and the peer sees the parent's end when it
    comes, not the child's. To be shut down, as a socket would be closed, would end the parent's conversation.
    """
    if (fd := file.fileno()) < 0:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, fd, inheritable=False)
    os.close(null)


class Inherited:
    """State of an inherited object in the child."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The parent's block goes on; one that would commit at its end must not seem to have done so."""
        if error is None and type(self)._was.endswith("Transaction"):
            _refuse(self)

    async def __aenter__(self) -> NoReturn:
        _refuse(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __iter__(self) -> NoReturn:
        _refuse(self)

    def __aiter__(self) -> NoReturn:
        _refuse(self)


def in_its_own_process(leave: Leave) -> Leave:
    """For `__exit__` and `__aexit__`: a block that the parent has entered asks for them before the fork."""

    @functools.wraps(leave)
    def call(self: object, *arguments: Any) -> Any:
        leaves = getattr(type(self), leave.__name__) if type(self) in _inherited_kinds else leave
        return leaves(self, *arguments)

    return cast(Leave, call)


class _Nothing:
    """Result of closing an inherited object: nothing, for threads and tasks alike."""

    def __await__(self) -> Any:
        return iter(())


def _nothing() -> _Nothing:
    return _Nothing()


def _refuse(thing: Any) -> NoReturn:
    raise MadeBeforeFork(f"this {type(thing)._was} was made before fork, by the parent process: make a new one here")


@functools.cache
def _inherited(kind: type) -> type:
    # Of the same bases, and nothing more: only such a class can take its place.
    names = {name: value for name, value in vars(Inherited).items() if name not in ("__dict__", "__weakref__")}
    made = type(f"Inherited{kind.__name__}", kind.__bases__, names | {"_was": kind.__name__.lstrip("_")})
    _inherited_kinds.add(made)
    return made


def _in_child() -> None:
    for let_go in list(_made.values()):
        if let_go is not None:
            with suppress(OSError):  # it was closed by the parent already
                let_go()
    for thing in list(_made):
        kind: type = type(thing)
        thing.__class__ = _inherited(kind)
    _made.clear()


os.register_at_fork(after_in_child=_in_child)
