"""Output of commands: a table for people, one JSON object a line for scripts; texts, questions; shared options."""

import getpass
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from meta_client.cli.security_options import security_options
from meta_client.operations.option_types import Seconds
from meta_client.operations.text import printable

DECLINED: Final = 1  # exit status: the user declined
ZK_DEFAULT: Final = "127.0.0.1:2181"

_zk_option = click.option(
    "--zk",
    envvar="METAQ_ZK",
    default=ZK_DEFAULT,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT[/CHROOT]",
    help="ZooKeeper.",
)


def zk_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add --zk, and the options by which brokers are connected to safely."""
    return _zk_option(security_options(command))


def _or_environment(context: click.Context, parameter: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    """Not click's envvar, which splits what may be given more than once at white space."""
    del context, parameter
    return urls or tuple(filter(None, [os.environ.get("DATABASE_URL")]))


existing_directory = click.Path(exists=True, file_okay=False, path_type=Path)
databases_option = click.option(
    "--database",
    "databases",
    multiple=True,
    metavar="URL",
    callback=_or_environment,
    help="Database that takes part, with its decision table and prepared transactions; may be given more than once.  "
    "[env var: DATABASE_URL, for one, which no list of processes shows]",
)
logs_option = click.option(
    "--decisions",
    "logs",
    multiple=True,
    metavar="DIR",
    type=existing_directory,
    help="Coordinator's log, or a directory right above several; may be given more than once.",
)
admin_port_option = click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics and health over HTTP on 127.0.0.1. 0: any free one. Without it: off.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")


def age_option(default_s: float, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --age, in seconds, with *text* as its help."""
    return click.option("--age", "age_s", type=Seconds(), default=default_s, show_default=True, help=text)


def operator() -> str:
    """Return the user of this command, as the ledger names operators."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    *,
    as_json: bool,
    empty: str = "",
    err: bool = False,
) -> None:
    """Print *rows*, of which *columns* alone if they are given, to stderr with *err*; *empty* replaces an empty table,
    not for scripts."""
    if as_json:
        for row in rows:
            click.echo(json.dumps({name: row[name] for name in columns or row}, default=str), err=err)
    elif not rows:
        click.echo(empty, err=err)
    else:
        names = columns or list(rows[0])
        lines = [names, *([_cell(row[name]) for name in names] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo("  ".join(cells).rstrip(), err=err)


def print_counts(counts: Mapping[str, int], *, as_json: bool) -> None:
    click.echo(json.dumps(counts) if as_json else " ".join(f"{name}={count}" for name, count in counts.items()))


def _cell(value: object) -> str:
    """Return an untrusted value as one line, without terminal control characters. Never cut: identifiers must be
    complete to be pasted."""
    text = "-" if value is None else str(value)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def refuse_away(brokers: Sequence[int]) -> None:
    """End with exit status 1 if there are *brokers* whose partitions could not be shown."""
    if brokers:
        named = ", ".join(map(str, brokers))
        raise click.ClickException(f"incomplete: broker {named} has no master in ZooKeeper: see `metaq brokers`")


def confirm(question: str) -> None:
    """Return if the user confirms *question*; otherwise end the command with a hint at the option that skips it."""
    try:
        is_wanted = click.confirm(printable(question), err=True)
    except click.Abort:
        # Ctrl-C, or the end of the input: tell scripts without a terminal about --yes.
        click.echo("\nnothing was changed: the question had no answer; --yes skips it", err=True)
        raise
    if not is_wanted:
        click.echo("nothing was changed", err=True)
        sys.exit(DECLINED)
