"""The native core, where one was compiled (hatch_build.py): a quicker way to the effects of some Python here.

Without it, or with one of another interface, everything works alike. `metaq --version` says which.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

INTERFACE = 6  # of native/module.c: one compiled for another version of this project is left alone


def _maybe_core() -> "ModuleType | None":
    try:
        found = import_module("meta_client._core")
    except ImportError:  # not compiled, or for another interpreter
        return None
    return found if found.INTERFACE == INTERFACE else None


core: Any = _maybe_core()  # None: Python alone


def description() -> str:
    """Return what runs, for people."""
    return "Python alone" if core is None else "native core"
