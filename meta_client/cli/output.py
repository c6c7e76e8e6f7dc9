"""Listings: a table for people, one JSON object per line for scripts; and options shared by commands."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

ZK_DEFAULT: Final = "127.0.0.1:2181"

zk_option = click.option(
    "--zk",
    envvar="METAQ_ZK",
    default=ZK_DEFAULT,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT[/CHROOT]",
    help="ZooKeeper.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def print_rows(columns: Iterable[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool, empty: str) -> None:
    """Print *rows* with *columns*; *empty* replaces an empty table, not for scripts."""
    names = list(columns)
    listed = list(rows)
    if as_json:
        for row in listed:
            click.echo(json.dumps({name: row[name] for name in names}, default=str))
    elif not listed:
        click.echo(empty)
    else:
        lines = [names, *([_cell(row[name]) for name in names] for row in listed)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    """Return an untrusted value as one line, without terminal control characters. Never cut: identifiers must be
    complete to be pasted."""
    text = "-" if value is None else str(value)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
