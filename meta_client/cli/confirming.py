"""Asking before something that nothing undoes."""

import sys
from typing import Final

import click

DECLINED: Final = 1  # exit status: whoever was asked said no


def confirm(question: str) -> None:
    """Return if somebody says yes to *question*; end the command otherwise, with a word on how to do without."""
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort:
        # Ctrl-C, or the end of the input: a script that has no terminal must hear of --yes.
        click.echo("\nnothing was changed: nobody answered; with --yes nobody is asked", err=True)
        raise
    if not is_wanted:
        click.echo("nothing was changed", err=True)
        sys.exit(DECLINED)
