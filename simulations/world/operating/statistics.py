"""Law of the statistics that nodes publish: they must equal the answers that clients received.

Both are counted while no fault is active, so each check is decided exactly once.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ringfence.client.decision import Status

__all__ = ["Published", "Tally", "wrong_decisions", "wrong_statistics"]

_MOST_REPORTED = 5
"""Most reported differences of one run."""
_ADMITTED = ("allowed", "over_soft", "uncharged")
_BY_NODES = ("owner", "standby")
_UNDECIDED = ("local", "policy", "shed")


@dataclass(slots=True)
class Tally:
    """Answers that clients received, counted as nodes count them."""

    decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Checks by name of the rule, result and source."""
    denied: Counter[str] = field(default_factory=Counter)
    """Denials by hexadecimal key."""
    charges: int = 0
    overdrawn: int = 0

    def add(self, rule: str, key: str, status: Status, *, is_admitted: bool) -> None:
        """Count the answer of one counter to a check or a peek.

        A counter may allow a check that other counters of the request deny. Its client does not
        know whether the owner counted the check as `over_soft`.
        """
        result = _result_of(status)
        if result in _ADMITTED and not is_admitted:
            result = "uncharged"
        self.decisions[rule, result, str(status.source)] += 1
        if result.endswith("denied"):
            self.denied[key] += 1

    def add_charge(self, status: Status) -> None:
        """Count the answer to a charge."""
        self.charges += 1
        self.overdrawn += not status.allowed or status.over_shadow


@dataclass(slots=True)
class Published:
    """Statistics that the nodes published about the same time."""

    decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Checks of all nodes by name of the rule, result and source."""
    denied: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By hexadecimal key: denials, and the largest error of this number."""
    denials: int = 0
    """Denials of all keys."""
    counters: Counter[str] = field(default_factory=Counter)
    """Increase of the metric counters, summed over all nodes."""
    missing: Sequence[str] = ()
    """Nodes that `denied` and `denials` do not contain, because they did not answer in time."""


def wrong_statistics(tally: Tally, published: Published, repeated: Collection[str]) -> list[str]:
    """Describe the first differences between the statistics of nodes and the answers of clients.

    `repeated` are the names of rules whose checks several nodes decide, or one node several times.
    Their answers are not in the tally.
    """
    found = [
        *wrong_decisions(tally.decisions, published.decisions, repeated),
        *_wrong_denials(tally.denied, published),
        *_wrong_counters(tally, published),
    ]
    return found[:_MOST_REPORTED]


def wrong_decisions(
    received: Mapping[tuple[str, str, str], int],
    published: Mapping[tuple[str, str, str], int],
    repeated: Collection[str] = (),
) -> Iterator[str]:
    """Describe differences between the decisions that clients received and that nodes published."""
    there, here = _by_result(received), _by_result(published)
    for rule, source in sorted({*there, *here}):
        answers, counts = there.get((rule, source), {}), here.get((rule, source), {})
        if rule in repeated or dict(answers) == dict(counts):
            continue
        uncertain = answers.get("uncharged", 0)
        is_soft = 0 <= counts.get("over_soft", 0) - answers.get("over_soft", 0) <= uncertain
        is_equal = _admitted(answers) == _admitted(counts) and all(
            answers.get(result, 0) == counts.get(result, 0)
            for result in sorted({*answers, *counts})
            if result not in _ADMITTED
        )
        if not (is_soft and is_equal):
            yield (
                f"{rule}: nodes counted {_text(counts)} by {source}, clients received "
                f"{_text(answers)}"
            )


def _by_result(
    decisions: Mapping[tuple[str, str, str], int],
) -> dict[tuple[str, str], dict[str, int]]:
    found: dict[tuple[str, str], dict[str, int]] = {}
    for (rule, result, source), count in decisions.items():
        if count:
            found.setdefault((rule, source), {})[result] = count
    return found


def _admitted(counts: Mapping[str, int]) -> int:
    return sum(counts.get(result, 0) for result in _ADMITTED)


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {result}" for result, count in sorted(counts.items())) or "none"


def _wrong_denials(received: Mapping[str, int], published: Published) -> Iterator[str]:
    if published.missing:
        return
    denials = sum(
        count for (_, result, _), count in published.decisions.items() if result.endswith("denied")
    )
    if denials != published.denials:
        yield f"nodes list {published.denials} denials, and count {denials} by rule"
    is_complete = all(error == 0 for _, error in published.denied.values())
    # Clients report only the keys with the most denials, and the others by rule.
    unnamed = max(0, published.denials - sum(listed for listed, _ in published.denied.values()))
    for key, count in sorted(received.items()):
        listed, error = published.denied.get(key, (0, 0))
        if key not in published.denied and not is_complete:
            continue
        if not listed - error <= count <= listed + unnamed:
            yield f"key {key}: nodes list {listed} denials, at most {error} too many, got {count}"


def _wrong_counters(tally: Tally, published: Published) -> Iterator[str]:
    """Compare the counters of nodes with each other, and with the answers of clients."""
    own: Counter[str] = Counter()
    reported: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    for (_, result, source), count in published.decisions.items():
        sources[source] += count
        kind = "denied" if result.endswith("denied") else result
        if source in _BY_NODES:
            own[kind] += count
        else:
            reported["denied" if kind == "denied" else "allowed"] += count
    undecided = sum(sources[source] for source in _UNDECIDED)
    expected = {
        "checks": sum(own.values()),
        "allowed": own["allowed"] + own["over_soft"],
        "over_soft": own["over_soft"],
        "denied": own["denied"],
        "uncharged": own["uncharged"],
        "unknown_rule": own["unknown_rule"],
        "decided_as_standby": sources["standby"],
        "charges": tally.charges,
        "overdrawn": tally.overdrawn,
    }
    if not undecided:
        expected |= {
            "undecided": 0,
            "reported_undecided": 0,
            "reported_denied": reported["denied"],
            "reported_allowed": reported["allowed"],
        }
    for name, count in expected.items():
        got = published.counters[name]
        if got != count:
            yield f"counter {name} of all nodes must rise by {count}, got {got}"


def _result_of(status: Status) -> str:
    if status.over_shadow:
        return "shadow_denied"
    if not status.allowed:
        return "quota_denied" if status.rule is not None and status.rule.quota else "denied"
    return "over_soft" if status.over_soft else "allowed"
