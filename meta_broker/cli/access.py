"""`metaq access`: the file of principals and their rights."""

import os
import secrets
import sys
from pathlib import Path
from typing import Final

import click

from meta_broker.access.principal import is_pattern
from meta_broker.access.rules import load_rules, parse_rules
from meta_broker.access.scram import Verifier
from meta_broker.errors import ConfigError
from meta_client.cli.output import json_option, print_rows
from meta_client.net.security import Credentials

COLUMNS: Final = ("principal", "login", "produce", "consume", "groups", "admin", "decide", "replicate", "addresses")
_FILE = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The access file, as [access] file names it.",
)


@click.group()
def access() -> None:
    """Principals that brokers know, and what each may do.

    \b
    metaq access add shop --file access.toml --produce orders --decide '*'
    metaq access list --file access.toml
    kill -HUP <broker>      brokers read the file again
    """


@access.command()
@click.argument("name")
@_FILE
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the password in its first line. Without it, ask, or read standard input.",
)
@click.option(
    "--produce", multiple=True, metavar="TOPIC", help="Let it put messages into TOPIC; with stars, a pattern."
)
@click.option("--consume", multiple=True, metavar="TOPIC", help="Let it read TOPIC.")
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", help="Let it read as a member of GROUP alone.  [default: any]"
)
@click.option("--admin", multiple=True, metavar="TOPIC", help="Let it change TOPIC's settings.")
@click.option("--decide", multiple=True, metavar="QUALIFIER", help="Let it begin and end XA branches of QUALIFIER.")
@click.option("--replicate", is_flag=True, help="Let it follow as a slave.")
def add(
    name: str,
    path: Path,
    password_file: Path | None,
    produce: tuple[str, ...],
    consume: tuple[str, ...],
    groups: tuple[str, ...],
    admin: tuple[str, ...],
    decide: tuple[str, ...],
    replicate: bool,
) -> None:
    """Add a principal with a password to the file, which is made if it is missing.

    The file gets a verifier, never the password. Change or remove a principal with an editor: it is TOML.
    """
    if not is_pattern(name) or "*" in name:
        raise click.BadParameter("a name has 1 to 255 characters, no white space and no star", param_hint="'NAME'")
    known = load_rules(path) if path.exists() else None
    if known is not None and name in known.principals:
        raise ConfigError(f"{path}: {name} is there already: remove its section first, or change it with an editor")
    password = _password(name, password_file)
    try:
        verifier = Verifier.of(password)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    lists = {"produce": produce, "consume": consume, "groups": groups, "admin": admin, "decide": decide}
    lines = ["", f"[principals.{_quoted(name)}]", f'verifier = "{verifier}"']
    lines += [f"{key} = [{', '.join(map(_quoted, names))}]" for key, names in lists.items() if names]
    lines += ["replicate = true"] * replicate
    before = path.read_bytes() if known is not None else f'secret = "{secrets.token_hex(32)}"\n'.encode()
    after = before + os.fsencode("\n".join(lines)) + b"\n"  # refused if an argument is not UTF-8
    parse_rules(after, str(path))
    _replace(path, after)
    click.echo(f"{name} added to {path}: send brokers SIGHUP", err=True)


@access.command(name="list")
@_FILE
@json_option
def list_command(path: Path, as_json: bool) -> None:
    """List the principals of the file and their rights, as brokers would read it; refuses what they would refuse."""
    rows = [
        {
            "principal": each.name,
            "login": "password" if each.verifier else "certificate" if each.certificates else "address",
            "replicate": each.replicate,
            "addresses": ",".join(each.addresses) or None,
            **{key: ",".join(getattr(each, key)) or None for key in COLUMNS[2:7]},
        }
        for each in load_rules(path).principals.values()
    ]
    print_rows(rows, COLUMNS, as_json=as_json, empty="no principal: add one with `metaq access add`")


def _password(name: str, path: Path | None) -> str:
    if path is not None:
        return Credentials.load(name, path).password
    if sys.stdin.isatty():
        return str(click.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    return Credentials(name, sys.stdin.readline().rstrip("\r\n")).password


def _quoted(text: str) -> str:
    """Return *text*, a name or pattern, as a TOML string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _replace(path: Path, content: bytes) -> None:
    """Replace the file, whole or not at all; only its owner may read it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
