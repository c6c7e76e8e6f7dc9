"""One set-up of logging for every command that runs long: to stderr, as text or JSON, repeats limited, counted."""

import functools
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

import click

from meta_client.logs.counting import count_records
from meta_client.logs.formats import JsonFormatter, TextFormatter
from meta_client.logs.handler import LimitedHandler, LogStream

LogFormat = Literal["text", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")


def log_options(default_level: str = "info") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --log-level and --log-format to a command: log_level, log_format."""
    options = (
        click.option("--log-level", type=click.Choice(LEVELS), default=default_level, show_default=True),
        click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            envvar="METAQ_LOG_FORMAT",
            show_envvar=True,
            help="Form of the log: text, a line with key=value; json, an object a line.",
        ),
    )
    return lambda command: functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def set_up_logs(level: str, log_format: LogFormat, **fields: str) -> None:
    """Log records of *level* and above to stderr, and count warnings and errors. *fields* go with every line, of every
    thread. Does nothing where a program that calls commands has set up logging itself."""
    root = logging.getLogger()
    if not root.handlers:
        handler = LimitedHandler(_unbuffered(sys.stderr), fields)
        handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
        root.addHandler(handler)
        root.setLevel(level.upper())
    if level != "debug":
        logging.getLogger("zk.kazoo").setLevel(logging.ERROR)  # kazoo logs every attempt to connect
    count_records()


class _Descriptor(io.TextIOBase):
    """Writes to a file descriptor, without a buffer: that would keep what a full disk refused, and write it later."""

    def __init__(self, number: int) -> None:
        self._number = number

    def write(self, text: str) -> int:
        """Write all of *text*, or a part and raise OSError."""
        left = memoryview(text.encode(errors="backslashreplace"))
        while left:
            left = left[os.write(self._number, left) :]
        return len(text)


def _unbuffered(stream: TextIO) -> LogStream:
    try:
        return _Descriptor(stream.fileno())
    except OSError:  # no file: a program has put something of its own there
        return stream
