"""Reads what a broker depends on besides its disk: clock, descriptors, memory, processors, kernel, Python."""

import ctypes
import os
import platform
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meta_broker.store.memory_limit import memory_bytes

_CLOCK_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_UNSYNCHRONIZED: Final = 0x40  # STA_UNSYNC of adjtimex(2)
_ERROR_STATE: Final = 5  # TIME_ERROR


class _Timex(ctypes.Structure):
    """The head of Linux's struct timex, which is larger."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


@dataclass(frozen=True, slots=True)
class ClockState:
    """The kernel's clock. *is_synchronized* None: it can't be asked. *error_s*: its own bound on the error."""

    is_synchronized: bool | None
    error_s: float | None
    source: str | None


@dataclass(frozen=True, slots=True)
class MachineReport:
    """One machine, as this process sees it. *stepped_s*: wall clock against steady clock, during the test."""

    clock: ClockState
    stepped_s: float
    descriptors_soft: int
    descriptors_hard: int
    memory_bytes: int
    processors: int
    kernel: str
    python: str
    is_optimized: bool  # Python was not built for debugging


class WallClock:
    """Compares the wall clock with the steady one from its construction on."""

    def __init__(self) -> None:
        self._difference = time.time() - time.monotonic()

    @property
    def stepped_s(self) -> float:
        return time.time() - time.monotonic() - self._difference


def read_machine(clock: WallClock) -> MachineReport:
    """Return the report. *clock* was made when the test began."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineReport(
        clock=read_clock(),
        stepped_s=clock.stepped_s,
        descriptors_soft=soft,
        descriptors_hard=hard,
        memory_bytes=memory_bytes(),
        processors=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}",
        is_optimized=not hasattr(sys, "gettotalrefcount"),
    )


def read_clock() -> ClockState:
    """Ask the kernel whether something keeps its clock right. Changes nothing."""
    try:
        source: str | None = _CLOCK_SOURCE.read_text(encoding="ascii").strip()
    except OSError:
        source = None
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return ClockState(None, None, source)
    if state < 0:
        return ClockState(None, None, source)
    is_synchronized = state != _ERROR_STATE and not timex.status & _UNSYNCHRONIZED
    return ClockState(is_synchronized, timex.maxerror / 1e6 if is_synchronized else None, source)
