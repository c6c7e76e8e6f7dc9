"""Text form of a decision's receipts. Pure."""

from dataclasses import dataclass
from typing import Self

from journal.errors import InvalidRecord


@dataclass(frozen=True, slots=True)
class Receipts:
    """Receipts of one transaction, each in its participant's format, without blanks."""

    database: str
    broker: str

    def __post_init__(self) -> None:
        assert " " not in self.database + self.broker

    def __str__(self) -> str:
        return f"database={self.database} broker={self.broker}"

    @property
    def resource_ids(self) -> tuple[str, str]:
        """Identities of the two resources: `Participant.resource_id`."""
        return self.database.partition("@")[0], self.broker.partition("@")[0]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a decision record's text. Raises InvalidRecord."""
        match text.split(" "):
            case [database, broker] if database.startswith("database=") and broker.startswith("broker="):
                return cls(database.removeprefix("database="), broker.removeprefix("broker="))
        raise InvalidRecord(
            f"a decision names the participants {text!r}, which this version of metaq does not read: "
            f"recover with the version that wrote it"
        )
