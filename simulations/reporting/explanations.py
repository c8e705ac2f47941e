"""Explanations of figures that look like violations although all invariants held."""

from collections.abc import Iterator

from msgspec import Struct

from simulations.reporting.outcome import Outcome

__all__ = ["Explanation", "explanations"]

_SPLITTING = (
    *("cut", "clog", "pause", "stall", "slow", "spikes", "busy", "reset", "limits"),
    *("clock_step", "loss", "bursts", "corrupt", "crash"),
)
"""Faults during which two nodes may decide for one key, or after which counts are lost."""
_LOSING = ("crash", "leave", "cut", "clog", "pause", "stall", "slow", "spikes", "busy", "reset")
_REPEATING = (*_LOSING, "loss", "bursts", "corrupt", "errors")


class Explanation(Struct, frozen=True):
    """Figure above zero, its bound, and the reasons for which the bound is not zero."""

    figure: str
    """What the value counts."""
    value: float
    bound: float | None
    """Largest value that the invariant allows; None if each key has a different bound."""
    law: str
    reasons: tuple[str, ...]


def explanations(outcome: Outcome) -> list[Explanation]:
    """Return the figures of a run that need an explanation."""
    return [*_over(outcome), *_lost(outcome), *_twice(outcome), *_undecided(outcome)]


def _over(outcome: Outcome) -> Iterator[Explanation]:
    value = outcome.figures.get("over_admitted_worst_key", 0)
    if not value > 0:
        return
    worst = max(outcome.histories, key=lambda each: each.over, default=None)
    reasons = []
    what = "units over the limit of the worst key"
    bound = None
    if worst is not None and worst.over == value:
        what, bound = f"units over the limit of {worst.name} ({worst.limit})", worst.bound
        if worst.exact_by.endswith("_bucket"):
            reasons.append(f"{worst.exact_by} may admit a burst and the refill of one period")
        elif worst.exact_by != "exact":
            reasons.append(f"{worst.exact_by} may admit the limit twice around a window's edge")
        age = outcome.figures.get("staleness_worst_ms", 0)
        if worst.is_global and age > 0:
            reasons.append(
                f"other data centers received counts up to {age:.0f} ms late, and admitted "
                "meanwhile"
            )
    reasons += _faults(outcome, _SPLITTING, "two nodes may decide for one key during {}")
    yield Explanation(what, value, bound, "over_admission", tuple(reasons))


def _lost(outcome: Outcome) -> Iterator[Explanation]:
    value = outcome.figures.get("lost", 0)
    if value > 0:
        reasons = _faults(outcome, _LOSING, "units without a replica may be lost with {}")
        yield Explanation("hits lost", value, None, "lost_hits", tuple(reasons))


def _twice(outcome: Outcome) -> Iterator[Explanation]:
    value = outcome.figures.get("counted_twice", 0)
    if value > 0:
        reasons = _faults(
            outcome, _REPEATING, "a check whose answer is lost is asked again, during {}"
        )
        if outcome.scenario.network.resets:
            reasons.append("connections broke in the whole run, with requests in flight")
        yield Explanation("hits counted twice", value, None, "invented_hits", tuple(reasons))


def _undecided(outcome: Outcome) -> Iterator[Explanation]:
    value = outcome.figures.get("by_policy", 0)
    if value > 0:
        reasons = _faults(outcome, _REPEATING, "no node answered in time during {}")
        yield Explanation("checks that no node decided", value, None, "outage", tuple(reasons))


def _faults(outcome: Outcome, verbs: tuple[str, ...], text: str) -> list[str]:
    """Return one reason that names all faults of some kinds with their times."""
    found = [str(fault) for fault in outcome.faults if fault.verb in verbs]
    return [text.format("; ".join(found))] if found else []
