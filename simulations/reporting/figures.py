"""Figures of a run: answers, invariants and latencies."""

from collections.abc import Sequence

from simulations.judging.invariants import Invariants
from simulations.judging.ledger import Ledger

__all__ = ["figures_of"]


def figures_of(ledger: Ledger, invariants: Invariants, over: int) -> dict[str, float]:
    """Return the figures: answers by kind, results of the invariants, and latencies.

    `over` is the largest number of units above the limit of a key.
    """
    answers = [answer for _, answer in ledger.answers]
    took = sorted(answer.answered_at - answer.asked_at for answer in answers)
    return {
        "checks": len(answers),
        "admitted": sum(answer.allowed for answer in answers),
        "denied": sum(not answer.allowed for answer in answers),
        "by_owner": sum(answer.source.name == "OWNER" for answer in answers),
        "by_standby": sum(answer.source.name == "STANDBY" for answer in answers),
        "by_policy": sum(not answer.is_counted for answer in answers),
        "over_admitted_worst_key": over,
        "lost": invariants.lost,
        "counted_twice": invariants.counted_twice,
        "latency_p50_ms": _part(took, 0.5) * 1000,
        "latency_p99_ms": _part(took, 0.99) * 1000,
        "latency_worst_ms": _part(took, 1.0) * 1000,
    }


def _part(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0
