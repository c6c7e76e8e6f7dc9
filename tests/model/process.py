"""A process of a model: its code runs in greenlets, stops at every step, and ends where the process is killed."""

from greenlet import getcurrent


class Dead(BaseException):
    """Marks the end of a process: the code under test stops here."""


class Process:
    """One life of a process."""

    def __init__(self) -> None:
        self.is_alive = True

    def pause(self) -> None:
        """Let others go on."""
        self.check()
        parent = getcurrent().parent
        assert parent is not None
        parent.switch()
        self.check()

    def check(self) -> None:
        if not self.is_alive:
            raise Dead
