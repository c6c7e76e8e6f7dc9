"""`python -m bench.soak`: run the load, watch the broker, judge, plot."""

import csv
import subprocess
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import click

from bench.environment import environment
from bench.soak.load import PAST, TOPICS, Load
from bench.soak.plot import plot
from bench.soak.verdict import judge
from bench.soak.watch import Sample, Watch

SEGMENT_MB = 16
KEPT_MB = 128
CATCH_UP_S = 60
CONFIG = f"""
[broker]
segment_bytes = {SEGMENT_MB * 1024 * 1024}
checkpoint_seconds = 10

[retention]
bytes = {KEPT_MB * 1024 * 1024}
when = 5
""" + "".join(f"\n[topics.{topic}]\npartitions = 8\n" for topic in (*TOPICS, PAST))


@click.command()
@click.option("--minutes", type=float, default=20.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Seed of the load.  [default: the clock's]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("soak"),
    show_default=True,
    help="Directory of the plots and the log.",
)
def main(minutes: float, seed: int | None, out: Path) -> None:
    """Soak a broker: mixed load at a steady rate, retention on. Writes samples.csv and soak.svg; status 1 if memory or
    files grow, the journal is not bounded, the event loop keeps anybody waiting for more than 50 ms, or a message is
    lost."""
    seed = int(time.time()) if seed is None else seed
    out.mkdir(parents=True, exist_ok=True)
    with environment("sync", config=CONFIG) as on:
        load = Load(on.zookeeper, on.address, on.data, seed)
        try:
            load.fill()
            load.start()
            samples = _watched(Watch(on.broker_pid, on.data, on.address, load.account), minutes * 60)
            load.stop_sending()
            problems = [*load.account.failures, *judge(samples, kept_mb=KEPT_MB, segment_mb=SEGMENT_MB)]
            problems += _settle(load)
        finally:
            load.close()
        on.stop()
        problems += _audit(on.data)
    _write(samples, out)
    acknowledged = sum(load.account.acknowledged.values())
    click.echo(
        f"seed {seed}: {acknowledged} messages acknowledged, {len(load.account.undone)} of them rolled back, "
        f"{load.account.consumed} consumed, {load.account.doubled()} more than once"
    )
    for problem in problems:
        click.echo(f"NOT WELL: {problem}")
    sys.exit(1 if problems else 0)


def _watched(watch: Watch, seconds: float) -> list[Sample]:
    samples, due, end = list[Sample](), time.monotonic(), time.monotonic() + seconds
    while due < end:
        due += 1
        time.sleep(max(0.0, due - time.monotonic()))
        samples.append(watch.sample())
        if sys.stderr.isatty() or len(samples) % 60 == 0:
            print(samples[-1], file=sys.stderr, flush=True)
    return samples


def _settle(load: Load) -> list[str]:
    """Return the errors in the account once the consumer had time to catch up."""
    deadline = time.monotonic() + CATCH_UP_S
    while (missing := load.account.missing()) and time.monotonic() < deadline:
        time.sleep(1)
    undone = load.account.undone_seen()
    return [f"{missing} messages lost"] * bool(missing) + [f"{undone} rolled back messages were seen"] * bool(undone)


def _audit(data: Path) -> list[str]:
    words = [sys.executable, "-m", "meta_client.cli.main", "audit", str(data)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"the audit: {done.stdout}{done.stderr}"]


def _write(samples: list[Sample], out: Path) -> None:
    with (out / "samples.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
        writer.writeheader()
        writer.writerows(asdict(sample) for sample in samples)
    plot(samples, out / "soak.svg")


if __name__ == "__main__":
    main()
