"""Option type for times and ages in seconds."""

from typing import Final

import click

SECONDS_MAX: Final = 1_000_000.0  # some eleven days; sockets and locks take twice that


class Seconds(click.ParamType[float]):
    """Number of seconds from *low* to *high*."""

    name = "seconds"

    def __init__(self, low: float = 0.0, high: float = SECONDS_MAX) -> None:
        self._low = low
        self._high = high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = float("nan")
        if not self._low <= seconds <= self._high:  # NaN is in no range
            self.fail(f"{value} is not a number of seconds from {self._low:.15g} to {self._high:.15g}", param, ctx)
        return seconds
