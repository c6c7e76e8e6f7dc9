"""What a user's function may raise on a consumer's thread, sys.exit() included: there it would end the thread alone,
and nobody would hear of it."""

import threading
from typing import Final

RAISED: Final = (Exception, SystemExit)


class ListenerExited(Exception):
    """The function called sys.exit(). It counts as raised: raise an exception, or stop the consumer and then exit."""


def failure_of(error: Exception | SystemExit) -> Exception:
    """*error* as a failure like any. On the main thread, where a loop's listeners run, it ends the program: raised."""
    if not isinstance(error, SystemExit):
        return error
    if threading.current_thread() is threading.main_thread():
        raise error
    exited = ListenerExited(f"sys.exit({error.code!r})")
    exited.__cause__ = error
    return exited
