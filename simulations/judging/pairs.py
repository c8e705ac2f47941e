"""Pairs of features and faults: which ones a run met, and which ones a batch of runs must meet.

A feature and a fault meet if a request used the feature while the fault was active, in a data
center that the fault concerns. Two features meet if one request used both. Two faults meet if both
were active at one time in one data center.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations

from ringfence.limiter import Algorithm
from ringfence.rules import OnFailure, Rule
from simulations.judging.allowed_loss import hosts_of, members_of
from simulations.scenarios.faults.injection import VERBS
from simulations.scenarios.scenario import Fault, Scenario

__all__ = ["Usage", "fault_names", "features_of_rule", "pair_name", "pairs_met", "wanted_pairs"]

_CARRIED = ("adhoc", "override", "several_overrides")
_AXES: dict[str, tuple[str, ...]] = {
    "algorithm": tuple(each.value for each in Algorithm),
    "option": ("burst", "slots", "soft", "queue", "calendar", "first_hit"),
    "mode": ("shadow", "quota"),
    "scope": ("global", "split", "home"),
    "policy": ("on_failure_deny", "on_failure_local"),
    "request": (
        *("cost", "peek", "refund", "aged_refund", "bounded_refund", "charge"),
        *("group", "several_overrides", "probe", "batch", "reservation"),
    ),
    "limit": _CARRIED[:2],
    "key": ("hot_key", "new_key"),
    "host": ("processes",),
}
"""Features of requests. Two features of one axis need not meet."""
_ALGORITHMS_OF = {
    "burst": ("token_bucket", "leaky_bucket"),
    "slots": ("sliding_window",),
    "queue": ("leaky_bucket",),
    "calendar": ("fixed_window",),
    "first_hit": ("fixed_window",),
}
"""Algorithms that have an option; every algorithm has the others."""
_OF_FILES = (*_AXES["mode"], *_AXES["scope"], *_AXES["policy"])
"""Features that only rules of a file have."""
_NEVER = {
    *(frozenset((carried, other)) for carried in _CARRIED for other in _OF_FILES),
    *(frozenset(("first_hit", other)) for other in _OF_FILES),
    # Concurrency limits have no checks with costs, and one rule in all runs.
    *(
        frozenset(("concurrency", name))
        for axis in _AXES.values()
        for name in axis
        if name != "processes"
    ),
    # An ad-hoc limit is the only limit of its request.
    *(frozenset(("adhoc", other)) for other in ("group", "several_overrides")),
    frozenset(("global", "sliding_window_log")),
    frozenset(("split", "queue")),
    # A batch has many keys under one rule.
    *(frozenset(("batch", other)) for other in (*_CARRIED, *_AXES["key"], "first_hit")),
    # A probe follows a denial with a short retry time.
    *(frozenset(("probe", other)) for other in ("shadow", "calendar", "new_key")),
}
"""Pairs that cannot meet."""
_AFTERMATH_S = 1.0
"""Seconds after the end of a fault in which its effects continue."""
_EVERYWHERE = ("global", "split", "home")
"""Features by which the faults of all data centers concern a request."""


class Usage:
    """Record of the features that requests used, with times and data centers."""

    def __init__(self) -> None:
        self.instants: dict[tuple[frozenset[str], str], list[float]] = {}
        """Times at which requests with the same features were sent in a data center."""

    def add(self, features: frozenset[str], datacenter: str, at: float) -> None:
        """Record one request."""
        self.instants.setdefault((features, datacenter), []).append(at)


def features_of_rule(rule: Rule) -> frozenset[str]:
    """Return the features that all requests under a rule use."""
    limit = rule.limit
    if limit is None:
        return frozenset()
    found = {
        limit.algorithm.value: True,
        "burst": limit.burst is not None and limit.burst != limit.amount,
        "slots": limit.slots > 1,
        "soft": limit.soft_permille > 0,
        "queue": limit.queue,
        "calendar": limit.calendar is not None,
        "first_hit": limit.first_hit,
        "shadow": rule.shadow,
        "quota": rule.quota,
        rule.scope: rule.scope != "datacenter",
        "on_failure_deny": rule.on_failure is OnFailure.DENY,
        "on_failure_local": rule.on_failure is OnFailure.LOCAL,
    }
    return frozenset([name for name, is_used in found.items() if is_used])


def pairs_met(usage: Usage, scenario: Scenario) -> set[str]:
    """Return the names of all pairs that met in a run."""
    spans = [_span(fault, scenario) for fault in scenario.faults]
    found = set(_pairs_of_faults(spans))
    for (features, datacenter), instants in usage.instants.items():
        found.update(pair_name(one, other) for one, other in combinations(features, 2))
        is_everywhere = not features.isdisjoint(_EVERYWHERE)
        for name, begin, end, places in spans:
            if not (is_everywhere or datacenter in places):
                continue
            if any(begin <= at <= end for at in instants):
                found.update(pair_name(each, name) for each in features)
    return found & wanted_pairs()


@cache
def wanted_pairs() -> frozenset[str]:
    """Return the names of all pairs that a large batch of runs must meet."""
    axes, faults = list(_AXES.values()), fault_names()
    found = {pair_name(one, other) for one, other in combinations(faults, 2)}
    found |= {pair_name(feature, fault) for axis in axes for feature in axis for fault in faults}
    for some, others in combinations(axes, 2):
        found |= {
            pair_name(one, other) for one in some for other in others if _can_meet(one, other)
        }
    return frozenset(found)


def fault_names() -> list[str]:
    """Return the names of all kinds of faults; a cut has one more for each of its forms."""
    return [*VERBS, "cut_one_way", "cut_datacenter"]


def pair_name(one: str, other: str) -> str:
    """Return the name of a pair, which does not depend on the order."""
    return " x ".join(sorted((one, other)))


def _can_meet(one: str, other: str) -> bool:
    if frozenset((one, other)) in _NEVER:
        return False
    for option, algorithm in ((one, other), (other, one)):
        if algorithm in _AXES["algorithm"] and option in _ALGORITHMS_OF:
            return algorithm in _ALGORITHMS_OF[option]
    return True


def _span(fault: Fault, scenario: Scenario) -> tuple[str, float, float, frozenset[str]]:
    """Return the name of a fault, when it is active, and the data centers that it concerns."""
    name = fault.verb
    if name == "cut" and fault.args.get("one_way"):
        name = "cut_one_way"
    elif name == "cut" and "datacenter" in fault.args:
        name = "cut_datacenter"
    end = fault.at if fault.until is None else fault.until
    places = members_of(scenario)
    concerned = frozenset(places[host][0] for host in hosts_of(fault, scenario))
    return name, fault.at, end + _AFTERMATH_S, concerned


def _pairs_of_faults(
    spans: Iterable[tuple[str, float, float, frozenset[str]]],
) -> Iterator[str]:
    for one, other in combinations(spans, 2):
        is_at_once = one[1] <= other[2] and other[1] <= one[2]
        if one[0] != other[0] and is_at_once and one[3] & other[3]:
            yield pair_name(one[0], other[0])
