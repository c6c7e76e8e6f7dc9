"""What a case answers: one object a line with --json."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """*value* and *floor* in *unit*; ratio = value / floor. *detail* is for people: parts, counts, spreads."""

    case: str
    value: float
    unit: str
    floor: float
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.value / self.floor

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": round(self.ratio, 4)}
