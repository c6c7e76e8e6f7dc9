"""Starts programs that die with this process; one that refuses to run as root runs as nobody.

The steps between fork and exec are done by a separate small program, because a forked process with threads must not run
Python.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

LOG_TAIL_BYTES = 2_000
NOBODY = 65534  # unprivileged user and group of every Linux

# The order matters. Capabilities survive the change of user only when asked to, and a change of user clears the
# signal at the parent's death, which follows the parent's *thread*. DAC_OVERRIDE, or better DAC_READ_SEARCH, lets
# nobody pass through directories that are closed to it, such as a checkout in /root; it is kept if needed only.
# SECBIT_NO_SETUID_FIXUP, not PR_SET_KEEPCAPS: access(2) ignores what any other user than root is capable of unless that
# bit is set, and PostgreSQL asks it whether its own programs can be run.
_CHILD = """
import ctypes, json, os, sys
uid, parent, signal, needs_passage = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result != 0:
        sys.exit(f"{what} failed: {os.strerror(ctypes.get_errno())}")
def prctl(*arguments):
    check(libc.prctl(*map(ctypes.c_ulong, arguments)), f"prctl{arguments}")
if uid is not None:
    if needs_passage:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        held = (ctypes.c_uint32 * 6)()
        check(libc.capget(header, held), "capget")
        kept = [cap for cap in (2, 1) if held[1] & 1 << cap][:1]
        if not kept or not held[1] & 1 << 8:  # CAP_SETPCAP
            sys.exit("files are closed to others, and this root may not let another user pass: run as another user, "
                     "or from a folder that others may enter")
        prctl(28, 1 << 2, 0, 0, 0)  # PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if needs_passage:
        mask = 1 << kept[0]
        check(libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)), "capset")
        prctl(47, 2, kept[0], 0, 0)  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE: survives the exec
if signal:
    prctl(1, signal, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the parent died before the server started")
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_user() -> int | None:
    """Return the user id for a server that refuses root; None: the present one will do."""
    return NOBODY if os.geteuid() == 0 else None


def command(
    arguments: Sequence[str], *, stop_signal: int = 0, user: int | None = None, paths: Sequence[Path] = ()
) -> list[str]:
    """Return the command line that runs *arguments*, an absolute program first.

    *stop_signal* is sent to it when the calling thread ends, however that ends: call it from one that lives as long as
    the program should. *user*: run as that user and group, who must be able to reach *paths*.
    """
    needs_passage = user is not None and not all(is_open_to(user, path) for path in paths)
    orders = json.dumps([user, os.getpid(), stop_signal, needs_passage])
    return [sys.executable, "-I", "-S", "-c", _CHILD, orders, *arguments]


def is_open_to(user: int, path: Path) -> bool:
    """Return whether *user*, without supplementary groups, may enter all directories above *path*."""
    states = [parent.stat() for parent in path.resolve().parents]
    return all(state.st_mode & (0o100 if state.st_uid == user else 0o001) for state in states)


def log_tail(log: Path) -> str:
    """Return the last lines of a program's log as one, for an error."""
    lines = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()[-8:]
    return " | ".join(line.strip() for line in lines if line.strip()) or "(empty)"
