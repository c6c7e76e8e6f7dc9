"""Every public name has a docstring that gives effect, permitted callers and the remedy for errors."""

import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Iterator

import msgspec
import pytest

import meta_client
import meta_client.aio
from meta_client.protocol.errors import MetaError
from zk.errors import ZooKeeperError

OURS = ("meta_client", "journal", "zk", "meta_broker.testing")
# What an error tells its reader to do, or what is done for him.
REMEDY = re.compile(
    r"\b(again|ask|change|check|choose|close|compare|continue|correct|do|drop|fix|flush|free|get|give|handle|install|"
    r"leave|list|look|make|must be closed|name|nothing was sent|open|raise|read|rebalance|repair|report|restore|retry|"
    r"roll|seek|send|settle|skip|start|stop|subclass|take|try|use|wait)\b",
    re.IGNORECASE,
)
THREADS = re.compile(r"\b(thread|threads|task|tasks|loop|pure|immutable)\b", re.IGNORECASE)


def is_ours(thing: object) -> bool:
    module = getattr(thing, "__module__", "") or ""
    return any(f"{module}.".startswith(f"{name}.") for name in OURS)


def classes_in(hint: object) -> Iterator[type]:
    """Our classes that an annotation speaks of."""
    if isinstance(hint, type) and is_ours(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


def public_members(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The functions that a class itself defines and users call."""
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(plain, types.FunctionType):
            yield name, plain


def reachable() -> list[type]:
    """The classes of __all__ with what their methods take, and whatever comes out of a method of any of these."""
    modules = (meta_client, meta_client.aio)
    found: dict[type, None] = {}
    exported = [getattr(module, name) for module in modules for name in module.__all__]
    todo = list(exported)
    while todo:
        thing = todo.pop()
        if not isinstance(thing, type) or not is_ours(thing) or thing in found:
            continue
        found[thing] = None
        for _, function in public_members(thing):
            for name, hint in inspect.get_annotations(function, eval_str=False).items():
                if name == "return" or thing in exported:
                    todo += classes_in(_resolved(hint, function))
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


def _resolved(hint: object, function: types.FunctionType) -> object:
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, function.__globals__)
    except NameError:  # known to the type checker alone: found by another way, or not public
        return None


def is_protocol(cls: type) -> bool:
    return bool(vars(cls).get("_is_protocol"))


def all_subclasses(base: type[Exception]) -> list[type]:
    found: list[type] = [base]
    for cls in base.__subclasses__():
        found += all_subclasses(cls)
    # Those of the command line and of the demo end a program; they are told to its user as they are.
    return [cls for cls in dict.fromkeys(found) if is_ours(cls) and not re.search(r"\.(cli|demo)\b", cls.__module__)]


def import_everything() -> None:
    for name in OURS:
        package = importlib.import_module(name)
        for info in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not re.search(r"\.(cli|demo)\b", info.name) and not info.name.endswith("__main__"):
                importlib.import_module(info.name)


CLASSES = reachable()


def name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def test_the_walk_finds_what_users_hold() -> None:
    names = {cls.__name__ for cls in CLASSES}
    assert {"Client", "Producer", "Consumer", "LocalTransaction", "SendHandle", "TopicView", "Xid"} <= names
    assert len(CLASSES) > 50


def test_every_name_of_all_is_there_and_says_what_it_is() -> None:
    assert sorted(meta_client.__all__) == meta_client.__all__
    for module in (meta_client, meta_client.aio):
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type):
                assert thing in CLASSES, name
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        meta_client.nonsense  # noqa: B018 - the attribute is what is tested


@pytest.mark.parametrize("cls", CLASSES, ids=name_of)
def test_docstrings(cls: type) -> None:
    own = vars(cls).get("__doc__")
    assert own, f"{cls} has no docstring"
    assert not (dataclasses.is_dataclass(cls) and own.startswith(f"{cls.__name__}(")), f"{cls} has a made-up docstring"
    inherited = {name for base in cls.__mro__[1:] for name in vars(base) if getattr(vars(base)[name], "__doc__", None)}
    if is_protocol(cls):
        return  # it says whose docstrings hold
    bare = [name for name, function in public_members(cls) if not function.__doc__ and name not in inherited]
    assert not bare, f"{cls} leaves these without a docstring: {bare}"


def test_who_may_call_is_said_wherever_something_is_done() -> None:
    silent = []
    for cls in CLASSES:
        is_value = dataclasses.is_dataclass(cls) or issubclass(cls, tuple | enum.Enum | BaseException | msgspec.Struct)
        if is_value or is_protocol(cls) or not list(public_members(cls)):
            continue
        module = inspect.getmodule(cls)
        texts = (cls.__doc__ or "", (module.__doc__ or "") if module is not None else "")
        if not any(map(THREADS.search, texts)):
            silent.append(f"{cls.__module__}.{cls.__qualname__}")
    assert not silent


def test_every_error_says_what_to_do() -> None:
    import_everything()
    helpless = [
        f"{cls.__module__}.{cls.__qualname__}: {cls.__doc__}"
        for cls in all_subclasses(MetaError) + all_subclasses(ZooKeeperError)
        if not vars(cls).get("__doc__") or not (REMEDY.search(cls.__doc__ or "") or "Base of" in (cls.__doc__ or ""))
    ]
    assert not helpless, "\n".join(helpless)
