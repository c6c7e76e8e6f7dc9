"""Shared by the commands that run on Spark: their options, and how they end with an error."""

import functools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NoReturn

import click

from meta_client.operations.text import tell


class Setting(click.ParamType):  # type: ignore[type-arg]  # a subscript fails on the oldest click allowed
    """KEY=VALUE."""

    name = "KEY=VALUE"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, setting = value.partition("=")
        if not equals or not key.startswith("spark."):
            self.fail(f"{value!r} is not spark.KEY=VALUE", param, ctx)
        return key, setting


def _coordinates(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    for each in value.split(",") if value is not None else ():
        if _COORDINATE.fullmatch(each) is None:
            raise click.BadParameter(f"{each!r} is not GROUP:ARTIFACT:VERSION", ctx, param)
    return value


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
        "--conf", "settings", type=Setting(), multiple=True, help="A setting of Spark; may be given more than once."
    ),
    click.option(
        "--packages",
        metavar="G:A:V,...",
        callback=_coordinates,
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
