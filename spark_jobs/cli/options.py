"""Shared by the commands that run on Spark: their options, and how they end with an error."""

import functools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import click

from meta_client.operations.option_types import Parsed
from meta_client.operations.text import tell


def _setting(text: str) -> tuple[str, str]:
    key, equals, setting = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ValueError(f"{text!r} is not spark.KEY=VALUE")
    return key, setting


def _coordinates(text: str) -> str:
    for each in text.split(","):
        if _COORDINATE.fullmatch(each) is None:
            raise ValueError(f"{each!r} is not GROUP:ARTIFACT:VERSION")
    return text


_COORDINATE: Final = re.compile(r"[^:,\s]+(:[^:,\s]+){2}")
_OPTIONS: Final = (
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        metavar="URL",
        help="Spark's master: local[N], spark://HOST:PORT, yarn or k8s://URL.",
    ),
    click.option(
        "--conf",
        "settings",
        type=Parsed("KEY=VALUE", _setting),
        multiple=True,
        help="A setting of Spark; may be given more than once.",
    ),
    click.option(
        "--packages",
        metavar="G:A:V,...",
        type=Parsed("coordinates", _coordinates),
        help="Java packages for Spark, by their Maven coordinates.",
    ),
)


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --master, --conf and --packages; the command is called with *master* and *settings*, as a mapping."""

    @functools.wraps(command)
    def called(
        *arguments: object, settings: tuple[tuple[str, str], ...], packages: str | None, **others: object
    ) -> None:
        given: Mapping[str, str] = dict(settings) | ({"spark.jars.packages": packages} if packages else {})
        command(settings=given, **others)

    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), called)


def side_options(*, is_required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of both sides of a join: *url*, *directories*, *markers*, *since*,
    *offsets*."""
    options = (
        click.option(
            "--database",
            "url",
            envvar="DATABASE_URL",
            show_envvar=True,
            required=is_required,
            metavar="URL",
            help="PostgreSQL: a URL or conninfo.",
        ),
        click.option(
            "--dir",
            "directories",
            multiple=True,
            required=is_required,
            type=click.Path(path_type=Path),
            help="A broker's data directory, live, dead or restored; once for each broker.",
        ),
        click.option(
            "--marker",
            "markers",
            multiple=True,
            metavar="TABLE.COLUMN",
            help="Column of gtrids, or of message ids (bigint).",
        ),
        click.option(
            "--since",
            metavar="TIME",
            help="Take transactions with news from then on alone. ISO 8601; UTC without a zone.",
        ),
        click.option(
            "--offsets", metavar="TABLE", help="Check that consumers' offsets in this table are within the journals."
        ),
    )
    return lambda command: functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def time_ms(text: str) -> int:
    """Return the time of --since, ISO 8601 and UTC without a zone, in ms since 1970. Raises click.BadParameter."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time: 2026-01-31T12:00:00Z", param_hint="--since") from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def fail(line: str) -> NoReturn:
    """End the command with an error."""
    tell(f"error: {line}")
    raise SystemExit(2)


def shown(text: str) -> str:
    """Remove terminal control characters from *text*: topics and keys come from disk."""
    return "".join(character if character.isprintable() else "?" for character in text)
