"""Final report of the demo: a table as text, or one JSON object. Pure."""

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from meta_broker.demo.show import Performed
from meta_broker.demo.verdict import Audit, Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a run."""

    verdict: Verdict
    performed: Performed
    audit: Audit
    seed: int
    seconds: float

    @property
    def problems(self) -> list[str]:
        kills = [f"{kill.title}: {kill.problem}" for kill in self.performed.kills if kill.problem is not None]
        return [*self.verdict.problems, *kills]

    @property
    def is_well(self) -> bool:
        return not self.problems

    def table(self) -> Table:
        verdict = self.verdict
        table = Table(title="An order is in the database and on the broker, or in neither", title_justify="left")
        table.show_header = False
        for justify in ("left", "right", "left"):
            table.add_column(justify=justify, overflow="fold")
        table.add_row("invoices in both", f"{verdict.in_both:,}", "database and broker agree")
        table.add_row("invoices in neither", f"{verdict.in_neither:,}", "")
        table.add_row("invoices mixed", _mark(verdict.mixed), "in one only, doubled, or different")
        table.add_row("attempts rolled back", f"{self.performed.rolled_back:,}", "and done again", end_section=True)
        for name, lines in (
            ("lines ordered", verdict.lines_ordered),
            ("lines in the database", verdict.lines_in_database),
            ("lines on the broker", verdict.lines_on_broker),
            ("lines summed by consumers", verdict.lines_consumed),
        ):
            table.add_row(name, f"{lines:,}", "", end_section=name.endswith("consumers"))
        for number, (country, revenue) in enumerate(verdict.top, 1):
            is_last = number == len(verdict.top)
            table.add_row(
                f"revenue {country}", f"{revenue.amount:,.2f}", f"{revenue.lines:,} lines", end_section=is_last
            )
        for kill in self.performed.kills:
            outcome = "survived" if kill.problem is None else "NOT AS CLAIMED"
            table.add_row(f"killed: {kill.title}", f"{outcome} in {kill.seconds:.1f} s", kill.proof or kill.problem)
        table.add_section()
        table.add_row("Spark audit", Text("holds" if self.audit.holds else "FAILS"), self.audit.sentence)
        return table

    def lines(self) -> list[str]:
        """Return the lines below the table: every problem, and the seed for a repetition."""
        outcome = "all accounts agree" if self.is_well else "THE ACCOUNTS DIFFER"
        return [
            *(f"problem: {problem}" for problem in self.problems),
            f"{outcome}; seed {self.seed}, {self.seconds:.0f} s",
        ]

    def as_json(self) -> dict[str, object]:
        verdict = self.verdict
        return {
            "well": self.is_well,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "invoices": {"both": verdict.in_both, "neither": verdict.in_neither, "mixed": verdict.mixed},
            "rolled_back": self.performed.rolled_back,
            "lines": {
                "ordered": verdict.lines_ordered,
                "database": verdict.lines_in_database,
                "broker": verdict.lines_on_broker,
                "consumers": verdict.lines_consumed,
            },
            "revenue": [
                {"country": country, "lines": revenue.lines, "amount": f"{revenue.amount:.2f}"}
                for country, revenue in verdict.top
            ],
            "kills": [
                {"title": kill.title, "survived": kill.problem is None, "proof": kill.proof, "seconds": kill.seconds}
                for kill in self.performed.kills
            ],
            "audit": {"holds": self.audit.holds, "sentence": self.audit.sentence},
            "problems": self.problems,
        }


def _mark(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "")
