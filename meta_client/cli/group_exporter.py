"""`metaq groups exporter`: metrics of consumer groups, whether their members run or not."""

import time
from typing import Final

import click

from meta_client.cli.decision_table import raised_again
from meta_client.cli.options import connected
from meta_client.cli.output import zk_option
from meta_client.logs.setup import LogFormat, log_options, set_up_logs
from meta_client.operations.option_types import Seconds

KEPT_READINGS: Final = 4  # one takes longer while a broker does not answer
KEEP_S_MIN: Final = 60.0


@click.command()
@click.option(
    "--admin-port",
    required=True,
    type=click.IntRange(0, 65535),
    help="Serve metrics and health over HTTP on 127.0.0.1. 0: any free one.",
)
@click.option(
    "--group",
    "names",
    multiple=True,
    metavar="GROUP",
    help="Watch this group alone; may be given more than once.  [default: all that ever consumed]",
)
@click.option(
    "--interval", "interval_s", type=Seconds(), default=15.0, show_default=True, help="Seconds between two readings."
)
@log_options()
@zk_option
def exporter(
    admin_port: int, names: tuple[str, ...], interval_s: float, zk: str, log_level: str, log_format: LogFormat
) -> None:
    """Serve lag, members and owners of consumer groups as metrics, until Ctrl-C.

    Members export their own lag, which vanishes with the last of them. This is the group's, by the offsets that it
    stored in ZooKeeper: for groups that store them elsewhere, in your database, leave it out with --group. One process
    is enough for all groups.

    \b
    metaq groups exporter --admin-port 9441
    metaq groups exporter --admin-port 9441 --group billing --group shipping
    """
    from meta_client.admin.serving import serve_samples  # imported on first use: prometheus_client takes its time
    from meta_client.operations.group_watch import GroupWatch

    set_up_logs(log_level, log_format)
    with connected(zk) as client:
        watch = GroupWatch(client, names, max(KEPT_READINGS * interval_s, KEEP_S_MIN))
        with serve_samples(watch.samples, watch.ready, admin_port), raised_again() as check:
            while True:
                watch.read()
                check()
                time.sleep(interval_s)
                check()
