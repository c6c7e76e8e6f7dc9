"""`metaq broker` and `metaq dev`."""

import contextlib
import dataclasses
import errno
import functools
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from journal.errors import StorageFailed
from meta_broker.app.roles import run
from meta_broker.app.service_manager import READY, notify
from meta_broker.app.supervisor import Supervisor, configs
from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.config.broker_section import RoleName
from meta_broker.config.loading import load
from meta_broker.errors import CannotListen, ConfigError
from meta_client.logs.setup import LogFormat, log_options, set_up_logs
from zk.embedded.server import EmbeddedZooKeeper

ZK_PORT: Final = 2181  # default port of ZooKeeper
_PORT: Final = click.IntRange(0, 65535)

_BROKER_OPTIONS = (
    click.option("--port", type=int, default=8123, show_default=True, help="Port to listen at; 0: any free one."),
    click.option("--zk", help="ZooKeeper, HOST:PORT[/chroot]. Without it, clients must be given the URL."),
    click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Path of broker.toml. Without it, every topic name is allowed, with 4 partitions.",
    ),
    click.option(
        "--flush",
        metavar="sync|interval:MS",
        help="Answer when: sync, after an fsync (default); interval:MS, once the operating system has the bytes.",
    ),
    click.option(
        "--admin-port",
        type=_PORT,
        help="Serve metrics and health over HTTP, on [admin] host. 0: any free one. Without it: off.",
    ),
    log_options(),
)


def broker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of commands that run a broker: port, zk, config_path, flush, admin_port, log_level, format."""
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_BROKER_OPTIONS), command)


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    required=True,
    help="Directory of the journal; made when missing, held by one broker at a time.",
)
@click.option("--id", "broker_id", type=int, required=True, help="Id of the broker: 0 to 1023, unique in the cluster.")
@click.option(
    "--role",
    type=click.Choice(["master", "slave"]),
    help="Role; a slave follows the master of this id.  [default: master]",
)
@click.option("--slave-id", type=int, help="Number of this slave, unique among the slaves of this id.")
@click.option("--master", metavar="HOST:PORT", help="Master to follow.  [default: the one registered in ZooKeeper]")
@click.option(
    "--processes",
    type=int,
    default=1,
    show_default=True,
    help="Brokers to run and supervise, one a core: ids, ports and admin ports count up from those given, and each has "
    "the directory DATA/broker-ID.",
)
@click.option(
    "--traces",
    envvar="METAQ_TRACES",
    show_envvar=True,
    metavar="EXPORTER",
    help="Export OpenTelemetry spans of what traced clients store: console, otlp_proto_http or another installed one.",
)
@click.option("--stop-at-eof", is_flag=True, help="Stop when standard input ends, as it does when a supervisor dies.")
@broker_options
@click.pass_context
def broker(
    context: click.Context,
    data: Path,
    broker_id: int,
    role: RoleName | None,
    slave_id: int | None,
    master: str | None,
    processes: int,
    traces: str | None,
    stop_at_eof: bool,
    port: int,
    zk: str | None,
    config_path: Path | None,
    flush: str | None,
    admin_port: int | None,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It recovers its journal first, then opens the port, then registers in ZooKeeper; a clean stop leaves ZooKeeper
    first. A disk that fails a write or an fsync ends it: nothing acknowledged is lost, restart it once the disk is
    well.

    A slave keeps a copy of its master's journal, serves gets and fetches, and waits to be promoted.

    \b
    metaq broker --data /var/lib/metaq --id 0 --zk 127.0.0.1:2181 --config broker.toml
    metaq broker --data /var/lib/metaq-slave --id 0 --role slave --slave-id 1 --zk 127.0.0.1:2181 --port 8124
    metaq broker --data /var/lib/metaq --id 0 --processes 4 --zk 127.0.0.1:2181
    """
    # Supervised brokers share a log.
    set_up_logs(log_level, log_format, **({"broker": str(broker_id)} if stop_at_eof else {}))
    config = load(
        config_path,
        data=data,
        broker_id=broker_id,
        port=port,
        zookeeper=zk,
        flush=flush,
        role=role,
        slave_id=slave_id,
        master=master,
        admin_port=admin_port,
    )
    if config.flush.interval_ms:
        click.echo(
            f"warning: flush {config.flush}: a power cut may lose up to {config.flush.interval_ms} ms of "
            f"acknowledged messages; a killed process loses none",
            err=True,
        )
    if processes != 1:
        commands = {one.broker_id: _command(context, one) for one in configs(config, processes)}
        sys.exit(Supervisor(commands).run())
    if stop_at_eof:
        threading.Thread(target=_stop_at_eof, name="standard input", daemon=True).start()
    with contextlib.ExitStack() as stack:
        if traces is not None:
            from meta_client.otel.exporting import exporting  # imported on first use

            stack.enter_context(exporting(traces))
        serve(config)


def _command(context: click.Context, config: BrokerConfig) -> list[str]:
    """Return the command line of one supervised broker: the given one, with what is its own."""
    own: dict[str | None, object] = {
        "data": config.data,
        "broker_id": config.broker_id,
        "port": config.port,
        "admin_port": config.admin.port,
        "processes": None,
        "stop_at_eof": True,
    }
    words = [sys.executable, "-m", "meta_client.cli.main", "broker"]
    for option in context.command.params:
        value = own.get(option.name, context.params.get(option.name or ""))
        if value is True:
            words.append(option.opts[0])
        elif value is not None and value is not False:
            words += [option.opts[0], str(value)]
    return words


def _stop_at_eof() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def serve(config: BrokerConfig, *more: str) -> None:
    """Run the broker. Exit with status 1 if the journal stops while it serves; failing to start raises."""
    is_serving = False
    os.umask(0o077)  # what a broker writes is for its user alone

    def ready(line: str) -> None:
        nonlocal is_serving
        is_serving = True
        for text in (line, *more):
            click.echo(text)
        sys.stdout.flush()
        notify(READY, f"STATUS={line}")

    try:
        run(config, ready)
    except StorageFailed as error:
        if not is_serving:
            raise
        click.echo(f"stopped: {error}: nothing acknowledged is lost; start again once the disk is well", err=True)
        sys.exit(1)


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("metaq-dev"),
    show_default=True,
    help="Directory for ZooKeeper and the journal; kept between runs.",
)
@click.option("--port", type=_PORT, default=8123, show_default=True, help="Port of the broker; 0: any free one.")
@click.option("--zk-port", type=_PORT, default=ZK_PORT, show_default=True, help="Port of ZooKeeper; 0: any free one.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[:PARTITIONS]",
    help="A topic to offer; may be given more than once. Other names are allowed too, with 4 partitions.",
)
@click.option(
    "--admin-port",
    type=_PORT,
    default=0,
    show_default=True,
    help="Port of metrics and health; 0: any free one.",
)
@log_options()
def dev(
    data: Path, port: int, zk_port: int, topics: tuple[str, ...], admin_port: int, log_level: str, log_format: LogFormat
) -> None:
    """Run ZooKeeper and one broker for development, until Ctrl-C. Prints how to connect.

    \b
    metaq dev --topic orders:8
    metaq produce orders --zk 127.0.0.1:2181
    """
    os.umask(0o077)  # the directories of ZooKeeper, too, are for this user alone
    set_up_logs(log_level, log_format)
    offered = {"*": TopicConfig(partitions=4)} | dict(map(_topic, topics))
    _check_ports({zk_port: "ZooKeeper's, --zk-port", port: "the broker's, --port", admin_port: "metrics, --admin-port"})
    with EmbeddedZooKeeper(data / "zookeeper", port=zk_port) as server:
        connect = server.connect
        base = load(None, data=data / "broker", broker_id=0, port=port, zookeeper=connect, admin_port=admin_port)
        config = dataclasses.replace(base, topics=offered)

        topic = next(reversed(offered))
        serve(
            config,
            "",
            f"  connect:  export METAQ_ZK={connect}",
            f'  python:   Client("{connect}")',
            f"  produce:  metaq produce {topic} --zk {connect}",
            f"  consume:  metaq consume {topic} --zk {connect} --follow",
            "  stop:     Ctrl-C",
        )


def _check_ports(wanted: dict[int, str]) -> None:
    """Raise CannotListen if any of these ports of 127.0.0.1 is taken, naming all of them."""
    taken: dict[int, str] = {}
    for port, whose in wanted.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:  # the server itself reports other errors
                    taken[port] = f"port {port} ({whose})"
    if taken:
        stranger = f"; commands without --zk or METAQ_ZK connect to whatever listens on port {ZK_PORT}" * (
            ZK_PORT in taken
        )
        raise CannotListen(
            f"taken on 127.0.0.1, perhaps by another `metaq dev`: {' and '.join(taken.values())}: stop what listens "
            f"there, or take free ones with `metaq dev --zk-port 0 --port 0`; nothing was started{stranger}"
        )


def _topic(text: str) -> tuple[str, TopicConfig]:
    name, colon, count = text.partition(":")
    if colon and not (re.fullmatch("[0-9]{1,5}", count) and 1 <= int(count) <= 65_536):
        raise ConfigError(f"--topic {text}: write NAME or NAME:PARTITIONS, with at least one partition")
    return name, TopicConfig(partitions=int(count) if colon else 4)
