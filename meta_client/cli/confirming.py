"""Confirmation of irreversible operations."""

import sys
from typing import Final

import click

DECLINED: Final = 1  # exit status: the user declined


def confirm(question: str) -> None:
    """Return if the user confirms *question*; otherwise end the command with a hint at the option that skips it."""
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort:
        # Ctrl-C, or the end of the input: tell scripts without a terminal about --yes.
        click.echo("\nnothing was changed: nobody answered; with --yes nobody is asked", err=True)
        raise
    if not is_wanted:
        click.echo("nothing was changed", err=True)
        sys.exit(DECLINED)
