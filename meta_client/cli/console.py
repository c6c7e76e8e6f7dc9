"""`metaq console`: a web page over the cluster. Beside the console, because that is built on the other commands."""

import secrets
import socket
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from meta_client.cli.main import Failure
from meta_client.cli.options import connected
from meta_client.cli.output import age_option, databases_option, existing_directory, logs_option, operator, zk_option
from meta_client.net.security import why_not_private

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
TOKEN_CHARACTERS_MIN: Final = 16


@click.command()
@zk_option
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen at.  [default: any free one]")
@databases_option
@logs_option
@click.option(
    "--dead-letters",
    "dead_letters",
    multiple=True,
    metavar="DIR",
    type=existing_directory,
    help="A consumer's `dead_letter_directory` on this machine; may be given more than once.",
)
@age_option(10.0, "Seconds for which the doctor leaves a branch to its own process. A diagnosis takes as long.")
@click.option(
    "--allow-changes", "allows_changes", is_flag=True, help="Offer changes. Without it, the console only reads."
)
@click.option(
    "--allow-host",
    "more_hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name of the console, such as that of a TLS proxy.",
)
@click.option("--insecure", is_flag=True, help="Listen without TLS at an address that other machines reach.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with the token.  [default: a random token, in the URL]",
)
def console(
    zk: str,
    host: str,
    port: int,
    databases: tuple[str, ...],
    logs: tuple[Path, ...],
    dead_letters: tuple[Path, ...],
    age_s: float,
    allows_changes: bool,
    more_hosts: tuple[str, ...],
    insecure: bool,
    token_file: Path | None,
) -> None:
    """Serve a web page: brokers, transactions in doubt, topics, messages, groups, replication, journals.

    Prints its URL, with a token that is its key: anybody who has it sees every message. It only reads, unless
    --allow-changes is given. It listens on loopback; from elsewhere, come through a tunnel:

    \b
    metaq console
    metaq console --database postgresql://host/shop --allow-changes
    ssh -L 8300:127.0.0.1:8300 broker-1 metaq console --port 8300

    It keeps nothing: what it shows, it has just asked brokers and ZooKeeper for. A rate or a chart begins when its page
    is opened. What does not answer in 3 s is shown as unknown.
    """
    try:
        import uvicorn

        from meta_client.console.access import AccessRules, hosts_of
        from meta_client.console.connection import CONNECTIONS_MAX, REQUEST_S_MAX, ConsoleConnection
        from meta_client.console.server import make_app
        from meta_client.console.settings import ConsoleSettings
    except ModuleNotFoundError as error:
        raise Failure(f"metaq console needs the package {error.name}: pip install 'metaq-broker[console]'") from error
    if host not in LOOPBACK and not insecure:
        raise click.UsageError(
            f"--host {host} is no loopback address, and the token and every message would pass the network in the "
            "clear: come through an SSH tunnel, or say --insecure where a TLS proxy is in front"
        )
    token = secrets.token_urlsafe(32) if token_file is None else _token_in(token_file)
    is_given = click.get_current_context().get_parameter_source("zk") is ParameterSource.COMMANDLINE
    with connected(zk) as client, _listening(host, port) as listener:
        port = listener.getsockname()[1]
        rules = AccessRules(token, hosts_of(host, port, more_hosts), port, allows_changes)
        settings = ConsoleSettings(
            client=client,
            who=operator(),
            zookeeper=zk if is_given else "",
            databases=databases,
            logs=logs,
            dead_letters=dead_letters,
            age_s=age_s,
            allows_changes=allows_changes,
        )
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"console at http://{shown}:{port}/" + (f"?token={token}" if token_file is None else ""))
        click.echo("changes are allowed" if allows_changes else "it only reads: --allow-changes offers more", err=True)
        servers: list[uvicorn.Server] = []
        config = uvicorn.Config(
            make_app(settings, rules, lambda: servers[0].should_exit),
            lifespan="off",
            ws="none",
            http=ConsoleConnection,
            log_config=None,
            log_level="error",  # what strangers say wrong would fill a log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=32 * 1024,
            timeout_keep_alive=int(REQUEST_S_MAX),
            timeout_graceful_shutdown=5,
        )
        servers.append(uvicorn.Server(config))
        servers[0].run(sockets=[listener])


def _token_in(path: Path) -> str:
    if why := why_not_private(path, path.stat()):
        raise click.UsageError(why)
    token = path.read_text().strip()
    if (
        len(token) < TOKEN_CHARACTERS_MIN
        or not token.isascii()
        or not token.isprintable()
        or set(token) & set('";\\, ')
    ):
        raise click.UsageError(
            f"{path} holds no token: {TOKEN_CHARACTERS_MIN} letters and digits or more, as `openssl rand -hex 32` makes"
        )
    return token


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises Failure."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Failure(
            f"cannot listen at {host}:{port}: {error.strerror or error}: choose another --port (0: any free one)"
        ) from error
