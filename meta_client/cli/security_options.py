"""Options and environment variables by which commands connect safely, for every command that talks to brokers."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from meta_client.errors import InvalidSecurity
from meta_client.net.security import PLAIN, Credentials, Security
from meta_client.net.tls import TlsConfig
from zk.session.security import PLAIN as ZOOKEEPER_PLAIN
from zk.session.security import ZooKeeperSecurity

_META: Final = "metaq.security"
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
PASSWORD_VARIABLE: Final = "METAQ_PASSWORD"  # noqa: S105 (its name)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta.setdefault(_META, {})[parameter.name] = value


def _option(name: str, *more: Any, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    variable = "METAQ_" + name.removeprefix("--").upper().replace("-", "_")
    return click.option(name, *more, envvar=variable, show_envvar=True, expose_value=False, callback=_keep, **settings)


_ZOOKEEPER_OPTIONS: Final = (
    _option("--zk-user", hidden=True, help="Log in to ZooKeeper as this user (digest)."),
    _option("--zk-password-file", type=_FILE, hidden=True, help="File with that user's password in its first line."),
    _option(
        "--zk-tls-ca",
        type=_FILE,
        hidden=True,
        help="Speak TLS with ZooKeeper; file with the authority of its certificates.",
    ),
    _option("--zk-tls-certificate", type=_FILE, hidden=True, help="This client's certificate for ZooKeeper."),
    _option("--zk-tls-key", type=_FILE, hidden=True, help="Private key of that certificate."),
)
_OPTIONS: Final = (
    _option("--tls/--no-tls", default=None, help="Speak TLS with brokers; implied by the next four options."),
    _option("--tls-ca", type=_FILE, help="Authority of the brokers' certificates.  [default: the system's]"),
    _option("--tls-certificate", type=_FILE, help="Certificate of this client, for brokers that ask for one."),
    _option("--tls-key", type=_FILE, help="Private key of that certificate, if it has its own file."),
    _option("--tls-no-host-check", is_flag=True, help="Accept a broker's certificate that names another host."),
    _option("--user", help="Log in as this principal."),
    _option(
        "--password-file",
        type=_FILE,
        help=f"File with its password in the first line.  [default: the variable {PASSWORD_VARIABLE}]",
    ),
)


def security_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options. They are read with `security`, and not passed to the command."""
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS + _ZOOKEEPER_OPTIONS), command)


def zookeeper_security() -> ZooKeeperSecurity:
    """Return how the command that runs connects to ZooKeeper. Raises InvalidSecurity, ZooKeeperError."""
    if not (given := _given()):
        return ZOOKEEPER_PLAIN
    user, path = given["zk_user"], given["zk_password_file"]
    return ZooKeeperSecurity(
        user=user,
        password=Credentials.load(user, path).password if user and path else None,
        ca=given["zk_tls_ca"],
        certificate=given["zk_tls_certificate"],
        key=given["zk_tls_key"],
    )


def _given() -> dict[str, Any]:
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta.get(_META, {})


def security() -> Security:
    """Return how the command that runs connects to brokers. Raises click.UsageError, InvalidSecurity."""
    if not (given := _given()):
        return PLAIN
    return Security(_tls(given), _credentials(given)).check()


def _tls(given: dict[str, Any]) -> TlsConfig | None:
    ca, certificate, key = given["tls_ca"], given["tls_certificate"], given["tls_key"]
    is_wanted = given["tls"]
    if is_wanted is None:
        is_wanted = any((ca, certificate, key, given["tls_no_host_check"]))
    if not is_wanted:
        return None
    return TlsConfig(ca=ca, certificate=certificate, key=key, check_host=not given["tls_no_host_check"])


def _credentials(given: dict[str, Any]) -> Credentials | None:
    user, path = given["user"], given["password_file"]
    if user is None:
        if path is not None:
            raise click.UsageError("--password-file needs --user: whose password is it?")
        return None
    if path is not None:
        return Credentials.load(user, path)
    if not (password := os.environ.get(PASSWORD_VARIABLE)):
        raise InvalidSecurity(f"no password for {user}: give --password-file, or set {PASSWORD_VARIABLE}")
    return Credentials(user, password)
