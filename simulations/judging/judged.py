"""Count of judged decisions: how many each law judged exactly, and why it excused the others."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

__all__ = ["Judged", "as_row", "sentence"]


@dataclass(slots=True)
class Judged:
    """Numbers of decisions that were judged exactly and that were excused."""

    decisions: int = 0
    exactly: int = 0
    """Decisions to which no law applied an excuse."""
    excuses: Counter[str] = field(default_factory=Counter)
    """Excused decisions by reason; a decision with two reasons counts for each of them."""
    exact_by_law: Counter[str] = field(default_factory=Counter)
    excused_by_law: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Return the share of decisions that were judged exactly; 1 without decisions."""
        return self.exactly / self.decisions if self.decisions else 1.0

    def add_decision(self, reasons_by_law: Mapping[str, Collection[str]]) -> None:
        """Count one decision, with the reasons of each law that judged it; none if exact."""
        self.decisions += 1
        reasons: set[str] = set()
        for law, found in reasons_by_law.items():
            reasons.update(found)
            (self.excused_by_law if found else self.exact_by_law)[law] += 1
        self.exactly += not reasons
        self.excuses.update(sorted(reasons))

    def add(self, other: "Judged") -> None:
        """Add the numbers of another run."""
        self.decisions += other.decisions
        self.exactly += other.exactly
        self.excuses.update(other.excuses)
        self.exact_by_law.update(other.exact_by_law)
        self.excused_by_law.update(other.excused_by_law)


def as_row(judged: Judged) -> dict[str, object]:
    """Return the numbers as fields of a JSON line."""
    laws = sorted(judged.exact_by_law.keys() | judged.excused_by_law.keys())
    return {
        "decisions": judged.decisions,
        "judged_exactly": round(judged.share, 4),
        "excuses": dict(judged.excuses.most_common()),
        "laws": {
            law: {"exact": judged.exact_by_law[law], "excused": judged.excused_by_law[law]}
            for law in laws
        },
    }


def sentence(judged: Judged) -> str:
    """Return the reasons of all excused decisions, the most frequent first, as a text."""
    found = [f"{reason} {count:,}" for reason, count in judged.excuses.most_common()]
    return ", ".join(found) or "none"
