"""How a server that refuses to run as root is started by root: as nobody, with no more than it needs.

The text runs in a child of its own, because between fork and exec a process with threads must not run Python.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

NOBODY = 65534  # the user and group of every Linux who own nothing
STOP_SIGNAL = 2  # SIGINT: PostgreSQL's fast shutdown, tidy and soon

# The order matters. Capabilities survive the change of user only when asked to, and a change of user clears the
# signal at the parent's death, which follows the parent's *thread*. DAC_OVERRIDE, or better DAC_READ_SEARCH, lets
# nobody pass through directories that are closed to it, such as a checkout in /root; it is kept if needed only.
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
    prctl(8, int(needs_passage), 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if needs_passage:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        held = (ctypes.c_uint32 * 6)()
        check(libc.capget(header, held), "capget")
        kept = [cap for cap in (2, 1) if held[1] & 1 << cap][:1]
        if not kept:
            sys.exit("this root may not read every file, and the files are closed to others: run as another user")
        mask = 1 << kept[0]
        check(libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)), "capset")
        prctl(47, 2, kept[0], 0, 0)  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE: survives the exec
if signal:
    prctl(1, signal, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the parent died before the server started")
os.umask(0o077)
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_user() -> int | None:
    """The user id that a server must be run under; None: the one we have will do."""
    return NOBODY if os.geteuid() == 0 else None


def command(arguments: Sequence[str], paths: Sequence[Path], *, stop_signal: int = 0) -> list[str]:
    """The command line that runs *arguments* (an absolute program first) as `server_user`.

    *paths*: what it must be able to reach. *stop_signal*: sent to it when the calling thread ends, however it ends.
    """
    uid = server_user()
    needs_passage = uid is not None and not all(is_open_to(uid, path) for path in paths)
    orders = json.dumps([uid, os.getpid(), stop_signal, needs_passage])
    return [sys.executable, "-I", "-S", "-c", _CHILD, orders, *arguments]


def is_open_to(uid: int, path: Path) -> bool:
    """Whether user *uid*, in no group that matters, may pass through all directories above *path*."""
    states = [parent.stat() for parent in path.resolve().parents]
    return all(state.st_mode & (0o100 if state.st_uid == uid else 0o001) for state in states)
