"""Where a transaction's branches are, as a decision remembers it: text out, text in. Pure."""

from dataclasses import dataclass
from typing import Self

from journal.errors import InvalidRecord


@dataclass(frozen=True, slots=True)
class Where:
    """The receipts of one transaction, each in the words of its participant, which hold no blanks."""

    database: str
    broker: str

    def __post_init__(self) -> None:
        assert " " not in self.database + self.broker

    def __str__(self) -> str:
        return f"database={self.database} broker={self.broker}"

    @property
    def places(self) -> tuple[str, str]:
        """Which resources they are from: `Participant.where`."""
        return self.database.partition("@")[0], self.broker.partition("@")[0]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what a decision record says. Raises InvalidRecord."""
        match text.split(" "):
            case [database, broker] if database.startswith("database=") and broker.startswith("broker="):
                return cls(database.removeprefix("database="), broker.removeprefix("broker="))
        raise InvalidRecord(
            f"a decision names the participants {text!r}, which this version of metaq does not read: "
            f"recover with the version that wrote it"
        )
