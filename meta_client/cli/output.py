"""Listings: a table for people, one JSON object a line for scripts; and options that several commands share."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

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
    """Print *rows*, which have *columns*; *empty* is said when there are none (to people, not to scripts)."""
    names = list(columns)
    listed = list(rows)
    if as_json:
        for row in listed:
            click.echo(json.dumps({name: row[name] for name in names}, default=str))
    elif not listed:
        click.echo(empty)
    else:
        table = Table(*names, box=None, header_style="bold")
        for row in listed:
            table.add_row(*("" if row[name] is None else str(row[name]) for name in names))
        Console(soft_wrap=True).print(table)
