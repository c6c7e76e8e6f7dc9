"""The run: producers and consumers at work, the scheduled kills, the evidence at the end."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from meta_broker.demo.kills import Kill, appointments
from meta_broker.demo.messages import INVOICES_TOPIC, LINES_TOPIC, decode_invoice, decode_line
from meta_broker.demo.orders import Invoice
from meta_broker.demo.reader import read_topic
from meta_broker.demo.schema import LEDGER, ORPHANS, REVENUE
from meta_broker.demo.stage import Stage
from meta_broker.demo.talk import Committed, Finished
from meta_broker.demo.verdict import Account, Audit, Evidence, Revenue
from meta_broker.testing.launch import command
from meta_broker.testing.processes import ProgramFailed, metaq

STALL_S = 60.0  # without another invoice or line: something hangs, and the verdict says what is missing
AUDIT_TIMEOUT_S = 300.0
POLL_S = 0.1

OnStatus = Callable[[str], None]
OnProgress = Callable[[int, int], None]  # invoices committed, lines summed


@dataclass(frozen=True, slots=True)
class Watching:
    """Callbacks for progress."""

    status: OnStatus
    progress: OnProgress


@dataclass(frozen=True, slots=True)
class Performed:
    """Events of the run."""

    kills: list[Kill]
    rolled_back: int  # attempts that were rolled back and done again


class Stalled(ProgramFailed):
    """Progress stopped: no invoice or line was added for STALL_S."""


def perform(stage: Stage, invoices: list[Invoice], dice: random.Random, watching: Watching) -> Performed:
    """Have every invoice sent and every line summed, with three kills on the way. Raises ProgramFailed, Stalled."""
    plan = appointments(len(invoices), dice)
    kills: list[Kill] = []
    rolled_back = earlier = 0
    watching.status("working")
    stage.start_producers(plan[0].invoices)
    pace = _Pace(stage, watching)
    while not isinstance(event := stage.producers.next_event(POLL_S), Finished):
        done = pace.check()
        if isinstance(event, Committed):
            rolled_back = earlier + event.rolled_back
        if plan and done >= plan[0].invoices:
            appointment = plan.pop(0)
            watching.status(appointment.title)
            kills.append(appointment.kill(stage, dice, appointment.until))
            earlier = rolled_back
            watching.status("working")
    watching.status("consumers catch up")
    wanted = sum(len(invoice.lines) for invoice in invoices)
    while pace.lines < wanted and not pace.is_stalled:
        time.sleep(POLL_S)
        pace.check()
    assert not plan, "the producers wait for each kill"
    return Performed(kills, rolled_back)


class _Pace:
    """Progress, polled from the database."""

    def __init__(self, stage: Stage, watching: Watching) -> None:
        self._stage = stage
        self._watching = watching
        self._due = 0.0
        self._moved_at = time.monotonic()
        self._invoices = 0
        self.lines = 0

    @property
    def is_stalled(self) -> bool:
        return time.monotonic() > self._moved_at + STALL_S

    def check(self) -> int:
        """Return the number of invoices done. Raises ProgramFailed if a process has ended, Stalled."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + POLL_S / 2
            self._stage.broker.check()
            self._stage.consumers.check()
            before = self._invoices, self.lines
            self._invoices, self.lines = self._stage.progress()
            self._watching.progress(self._invoices, self.lines)
            if before != (self._invoices, self.lines):
                self._moved_at = now
            elif self.is_stalled:
                raise Stalled(
                    f"nothing has moved for {STALL_S:g} s at {self._invoices} invoices, {self.lines} lines: see the "
                    f"logs in {self._stage.directory}; the producers' ends: {self._stage.producers.log_tail()}"
                )
        return self._invoices


def gather(stage: Stage, invoices: list[Invoice], watching: Watching) -> Evidence:
    """Collect every account: consumers and broker are stopped on the way, the audit comes last.

    Raises MetaError, ZooKeeperError, ProgramFailed.
    """
    watching.status("comparing")
    stage.stop_consumers()
    lines = [decode_line(message.payload) for message in read_topic(stage.client, LINES_TOPIC)]
    headers = [decode_invoice(message.payload) for message in read_topic(stage.client, INVOICES_TOPIC)]
    in_doubt = sorted(stage.in_doubt_in_database() | stage.in_doubt_on_broker())
    stage.broker.stop()
    watching.status("Spark audits the log")
    connection = stage.connection
    return Evidence(
        ordered=invoices,
        database={number: Account(*facts) for number, *facts in connection.execute(LEDGER)},
        invoice_messages=headers,
        line_messages=lines,
        summed={country: Revenue(*sums) for country, *sums in connection.execute(REVENUE)},
        orphans=[number for (number,) in connection.execute(ORPHANS)],
        in_doubt=in_doubt,
        audit=audit(stage),
    )


class _Totals(msgspec.Struct):
    messages: Annotated[int, msgspec.Meta(ge=0)]
    in_doubt: Annotated[int, msgspec.Meta(ge=0)]


class _Report(msgspec.Struct):
    holds: bool
    sentence: str
    totals: _Totals


def audit(stage: Stage) -> Audit:
    """Run `metaq audit --json` on the stopped broker's directory. Raises ProgramFailed if that fails."""
    arguments = metaq("audit", str(stage.broker.data), "--json")
    try:
        done = subprocess.run(  # noqa: S603 - our own command line, no shell
            command(arguments, stop_signal=signal.SIGKILL), capture_output=True, timeout=AUDIT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"the audit is not done after {AUDIT_TIMEOUT_S:g} s") from None
    (stage.directory / "audit.log").write_bytes(done.stderr)
    try:
        report = msgspec.json.decode(done.stdout, type=_Report)
    except msgspec.DecodeError:
        tail = " | ".join(done.stderr.decode(errors="replace").splitlines()[-5:])
        raise ProgramFailed(f"the audit ended with code {done.returncode} and no report: {tail}") from None
    holds = report.holds and done.returncode == 0
    return Audit(holds, report.sentence, report.totals.messages, report.totals.in_doubt)
