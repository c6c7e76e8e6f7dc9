"""Final report of the demo: a table as text, or one JSON object. Pure."""

from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from meta_broker.demo.kills import Kill
from meta_broker.demo.verdict import Audit, RunVerdict


class RunReport(NamedTuple):
    """Results of a run."""

    verdict: RunVerdict
    kills: dict[str, Kill]
    rolled_back: int
    audit: Audit
    seed: int
    seconds: float

    @property
    def problems(self) -> list[str]:
        kills = [f"{title}: {kill.problem}" for title, kill in self.kills.items() if kill.problem is not None]
        return [*self.verdict.problems, *kills]

    def table(self) -> Table:
        counts, lines, top, _ = self.verdict
        title = "An order is in the database and on the broker, or in neither"
        table = Table(title=title, title_justify="left", show_header=False)
        for justify in ("left", "right", "left"):
            table.add_column(justify=justify, overflow="fold")
        table.add_row("invoices in both", f"{counts['both']:,}", "database and broker agree")
        table.add_row("invoices in neither", f"{counts['neither']:,}", "")
        mixed = Text(f"{counts['mixed']:,}", style="bold red" if counts["mixed"] else "")
        table.add_row("invoices mixed", mixed, "in one only, doubled, or different")
        table.add_row("attempts rolled back", f"{self.rolled_back:,}", "and done again", end_section=True)
        for side, count in lines.items():
            table.add_row(f"lines: {side}", f"{count:,}", "")
        table.add_section()
        for country, revenue in top:
            table.add_row(f"revenue {country}", f"{revenue.amount:,.2f}", f"{revenue.lines:,} lines")
        table.add_section()
        for title, kill in self.kills.items():
            outcome = "survived" if kill.problem is None else "NOT AS CLAIMED"
            table.add_row(f"killed: {title}", f"{outcome} in {kill.seconds:.1f} s", kill.proof or kill.problem)
        table.add_section()
        table.add_row("Spark audit", "holds" if self.audit.holds else "FAILS", self.audit.sentence)
        return table

    def lines(self) -> list[str]:
        """Return the lines below the table: every problem, and the seed for a repetition."""
        outcome = "THE ACCOUNTS DIFFER" if self.problems else "all accounts agree"
        last = f"{outcome}; seed {self.seed}, {self.seconds:.0f} s"
        return [*(f"problem: {problem}" for problem in self.problems), last]

    def as_json(self) -> dict[str, object]:
        counts, lines, top, _ = self.verdict
        return {
            "well": not self.problems,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "invoices": counts,
            "rolled_back": self.rolled_back,
            "lines": lines,
            "revenue": [{"country": name, "lines": it.lines, "amount": f"{it.amount:.2f}"} for name, it in top],
            "kills": [
                {"title": title, "survived": kill.problem is None, "proof": kill.proof, "seconds": kill.seconds}
                for title, kill in self.kills.items()
            ],
            "audit": {"holds": self.audit.holds, "sentence": self.audit.sentence},
            "problems": self.problems,
        }
