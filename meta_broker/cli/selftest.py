"""`metaq selftest`: examines a disk and a machine before a broker is put there."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Final

import click

from meta_broker.selftest.disk_test import DiskReport, SyncTimes, measure_disk
from meta_broker.selftest.judging import PARALLEL, Expectation, Grade, SelfTestFinding, expect, judge
from meta_broker.selftest.machine import MachineReport, WallClock, read_machine
from meta_client.operations.option_types import Seconds
from meta_client.operations.text import printable

UNFIT: Final = 1  # exit status: something is bad, or unknown
SHARES: Final = (0.5, 0.95, 0.99)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--seconds", type=Seconds(0.1, 3600), default=5.0, show_default=True, help="Seconds to measure fsyncs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def selftest(directory: Path, seconds: float, as_json: bool) -> None:
    """Examine the disk of DIR, and this machine: is it fit for a broker, and how fast will that be?

    Measures fsyncs, reads what was fsynced back past the page cache, and looks at file system, mount options, write
    cache, clock, descriptors, memory and Python. Needs 32 MiB, and leaves nothing in DIR. Whether a device keeps what
    it confirmed, only a power cut shows.

    Run it as the broker's user, on a quiet machine: a broker on the same disk is slowed, and slows it.

    \b
    Exit status: 0  fit, perhaps with warnings
                 1  something is bad, or unknown
                 2  DIR can't be written, or is full

    \b
    metaq selftest /var/lib/metaq
    """
    clock = WallClock()
    disk = measure_disk(directory, seconds, _print_step)
    machine = read_machine(clock)
    findings, rates = judge(disk, machine), expect(disk)
    if as_json:
        click.echo(json.dumps(_report(disk, machine, findings, rates)))
    else:
        for one in findings:
            click.echo(printable(f"{one.severity.value:<8} {one.what:<14} {one.text}"))
        click.echo(
            f"expect   about {_rounded(rates.one_by_one)} messages a second of one producer that waits for each, "
            f"{_rounded(rates.parallel)} of {PARALLEL} at once; batches carry many more: docs/performance.md"
        )
    if any(one.severity in (Grade.BAD, Grade.UNKNOWN) for one in findings):
        sys.exit(UNFIT)


def _print_step(step: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"testing: {step}", err=True)


def _rounded(rate: float) -> str:
    """Return *rate* with two digits: it is an estimate."""
    return f"{float(f'{rate:.2g}'):,.0f}"


def _times(times: SyncTimes) -> dict[str, float | int]:
    shares = {f"p{share * 100:g}": times.at(share) for share in SHARES}
    return {"count": len(times.seconds), **shares, "max": times.seconds[-1]}


def _report(
    disk: DiskReport, machine: MachineReport, findings: list[SelfTestFinding], rates: Expectation
) -> dict[str, object]:
    mount, device = disk.mount, disk.device
    return {
        "directory": disk.directory,
        "free_bytes": disk.free_bytes,
        "mount": None if mount is None else dataclasses.asdict(mount) | {"options": sorted(mount.options)},
        "device": None if device is None else dataclasses.asdict(device),
        "fsync_4k_s": _times(disk.small),
        "fsync_256k_s": _times(disk.large),
        "directory_fsync_s": disk.directory_sync_s,
        "is_preallocated": disk.is_preallocated,
        "reads_back": disk.reads_back,
        "machine": dataclasses.asdict(machine),
        "expect": dataclasses.asdict(rates),
        "findings": [dataclasses.asdict(one) for one in findings],
    }
