"""The run: producers and consumers at work, the scheduled kills, the evidence at the end."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from meta_broker.demo.environment import Environment
from meta_broker.demo.kills import Kill, appointments
from meta_broker.demo.orders import INVOICES_TOPIC, LINES_TOPIC, Invoice, decode_invoice, decode_line
from meta_broker.demo.producers import Finished
from meta_broker.demo.schema import LEDGER, ORPHANS, REVENUE
from meta_broker.demo.verdict import Account, Audit, Revenue, RunEvidence
from meta_broker.testing.real import ProgramFailed, metaq
from zk.embedded.launch import command

STALL_S = 60.0  # without another invoice or line: something hangs, and the verdict says what is missing
AUDIT_TIMEOUT_S = 300.0
POLL_S = 0.1


@dataclass
class DemoRun:
    """One run in *environment*. *show* is called with each step, and how far it is."""

    environment: Environment
    invoices: list[Invoice]
    show: Callable[[str, str], None]
    kills: dict[str, Kill] = field(default_factory=dict)  # by title
    _step: str = ""
    _done: tuple[int, int] = (0, 0)
    _moved_at: float = 0.0

    def perform(self, dice: random.Random) -> None:
        """Have every invoice sent and every line summed, with three kills on the way. Raises ProgramFailed."""
        environment, plan = self.environment, appointments(len(self.invoices), dice)
        self._begin("working")
        environment.producers.start(plan[0].invoices)
        while not isinstance(environment.producers.next_event(POLL_S), Finished):
            invoices, _ = self._progress()
            if plan and invoices >= plan[0].invoices:
                _, until, title, kill = plan.pop(0)
                self._begin(f"kill the {title}")
                self.kills[title] = kill(environment, until)
                self._begin("working")
        assert not plan, "the producers wait for each kill"
        self._begin("consumers catch up")
        wanted = sum(len(invoice.lines) for invoice in self.invoices)
        while self._progress()[1] < wanted:
            time.sleep(POLL_S)

    def _begin(self, step: str) -> None:
        self._step = step
        self.show(step, "")

    def _progress(self) -> tuple[int, int]:
        """Return the invoices committed and the lines summed. Raises ProgramFailed if the broker has ended, or nothing
        moves."""
        environment, now = self.environment, time.monotonic()
        environment.broker.check()
        if (done := environment.progress()) != self._done or not self._moved_at:
            self._done, self._moved_at = done, now
            self.show(self._step, f"{done[0]:,} of {len(self.invoices):,} invoices, {done[1]:,} lines summed")
        elif now > self._moved_at + STALL_S:
            raise ProgramFailed(
                f"nothing has moved for {STALL_S:g} s at {done[0]} invoices, {done[1]} lines: see the logs in "
                f"{environment.directory}; the producers' ends: {environment.producers.log_tail}"
            )
        return done

    def gather(self) -> RunEvidence:
        """Collect every account: consumers and broker are stopped on the way, the audit comes last.

        Raises MetaError, ZooKeeperError, ProgramFailed.
        """
        environment, client = self.environment, self.environment.client
        self._begin("comparing")
        environment.consumers.close()
        lines = [decode_line(message.payload) for message in client.browse(LINES_TOPIC)]
        headers = [decode_invoice(message.payload) for message in client.browse(INVOICES_TOPIC)]
        in_doubt = sorted(environment.in_doubt_in_database() | environment.in_doubt_on_broker())
        environment.broker.stop()
        self._begin("Spark audits the log")
        return RunEvidence(
            ordered=self.invoices,
            database={number: Account(*facts) for number, *facts in environment.connection.execute(LEDGER)},
            invoice_messages=headers,
            line_messages=lines,
            summed={country: Revenue(*sums) for country, *sums in environment.connection.execute(REVENUE)},
            orphans=[number for (number,) in environment.connection.execute(ORPHANS)],
            in_doubt=in_doubt,
            audit=audit(environment),
        )


def audit(environment: Environment) -> Audit:
    """Run `metaq audit --json` on the stopped broker's directory. Raises ProgramFailed if that fails."""
    arguments = command(metaq("audit", str(environment.broker.data), "--json"), stop_signal=signal.SIGKILL)
    try:
        done = subprocess.run(arguments, capture_output=True, timeout=AUDIT_TIMEOUT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"the audit is not done after {AUDIT_TIMEOUT_S:g} s") from None
    (environment.directory / "audit.log").write_bytes(done.stderr)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        tail = " | ".join(done.stderr.decode(errors="replace").splitlines()[-5:])
        raise ProgramFailed(f"the audit ended with code {done.returncode} and no report: {tail}") from None
    holds, totals = report["holds"] and done.returncode == 0, report["totals"]
    return Audit(holds, report["sentence"], totals["messages"], totals["in_doubt"])
