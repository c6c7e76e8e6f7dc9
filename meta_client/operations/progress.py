"""Progress on stderr: nothing for the first second, then a bar on a terminal, otherwise a line per second."""

import sys
import time
from typing import Any, Final, Self

import click

TELL_EVERY_S: Final = 1.0


class Progress:
    """Shows *done* of *total* in *unit*s, or just a position without a unit. One thread; use as a context manager.
    *is_shared*: stdout is written meanwhile, so no bar is drawn if that is a terminal."""

    def __init__(self, done: str, unit: str, total: int | None = None, *, is_shared: bool = False) -> None:
        self._done = done
        self._unit = unit
        self._total = total
        self._started = self._printed_at = time.monotonic()
        self.count = 0
        self._bar: Any = None  # rich's, imported after a second
        self._is_terminal = sys.stderr.isatty() and not (is_shared and sys.stdout.isatty())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def expect(self, total: int) -> None:
        self._total = total

    def at(self, count: int) -> None:
        self.count = count
        if (now := time.monotonic()) - self._printed_at < (0.1 if self._bar is not None else TELL_EVERY_S):
            return
        self._printed_at = now
        if self._is_terminal:
            self._show_bar()
            return
        of = "" if self._total is None else f" of {self._total}"
        rate = f" {self._unit}, {count / (now - self._started):.0f}/s" if self._unit else ""
        click.echo(f"{self._done} {count}{of}{rate}", err=True)

    def advance(self, count: int = 1) -> None:
        self.at(self.count + count)

    def _show_bar(self) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = TextColumn(self._done), BarColumn(), MofNCompleteColumn(), TextColumn(self._unit)
            self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task(self._done, total=self._total)
        self._bar.update(self._bar.task_ids[0], completed=self.count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
