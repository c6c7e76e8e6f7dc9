"""The result of a case: one object a line with --json."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit: *quantity* of a result must be at least, or with *is_ceiling* at most, *limit*."""

    quantity: Literal["ratio", "value", "messages_s"]
    limit: float
    is_ceiling: bool = False

    def __str__(self) -> str:
        return f"{self.quantity} {'<=' if self.is_ceiling else '>='} {self.limit:,g}"


@dataclass(frozen=True, slots=True)
class Result:
    """*value* and *baseline* in *unit*; ratio = value / baseline. *detail* is for people: parts, counts, spreads."""

    case: str
    value: float
    unit: str
    baseline: float
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.value / self.baseline

    def quantity(self, bar: Bar) -> float:
        """Return what *bar* limits."""
        found: float = {"ratio": self.ratio, "value": self.value, **self.detail}[bar.quantity]
        return found

    def meets(self, bar: Bar) -> bool:
        """Return True if the bar is met."""
        quantity = self.quantity(bar)
        return quantity <= bar.limit if bar.is_ceiling else quantity >= bar.limit

    def as_json(self) -> dict[str, Any]:
        return {"floor" if name == "baseline" else name: value for name, value in asdict(self).items()} | {
            "ratio": round(self.ratio, 4)
        }


def median(results: list[Result], bar: Bar) -> Result:
    """Return the middle one of some rounds by what *bar* limits, with the values of all of them as its `spread`.

    Of an even number the worse of the two in the middle.
    """
    ordered = sorted(results, key=lambda result: result.quantity(bar), reverse=bar.is_ceiling)
    middle = ordered[(len(ordered) - 1) // 2]
    if len(results) == 1:
        return middle
    spread = [float(f"{value:.4g}") for value in sorted(result.value for result in results)]
    return replace(middle, detail=middle.detail | {"spread": spread})
