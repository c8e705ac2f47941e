"""Which hits a run may lose at most: when faults leave an owner's hits without any copy.

A standby's copy is a tenth of a second old while all is well. Where the network was disturbed it is
older, and without a standby there is none. Pure: a scenario in, spans of time out.
"""

from collections.abc import Iterable, Sequence

from simulations.scenarios.faults import VERBS
from simulations.scenarios.scenario import Fault, Scenario

__all__ = ["UNCOPIED", "emptied", "is_strong", "members_of", "overwhelmed", "uncopied_spans"]

UNCOPIED = 0.35
"""Seconds before a crash whose hits the standby may not have: an interval that waits for the copy
before it, and the way."""
_UNTOLD = 2.0
"""Seconds before a crash whose hits other data centers may not have: what changed little is told
after a second, then the round, the way and a repetition."""
_AFTERWARDS = 0.1
"""Seconds that an answer may need to be told."""
_NEW_COPY = 8.0
"""Seconds until a death or a return is known to all and every standby has all its copies."""
_LEAVING = 8.0
"""Seconds that a node may take to hand over."""
_PARTING = ("crash", "leave", "pause", "stall", "cut", "clog")
"""Faults that take from others whom they are about, copies and all."""
_MUCH = 0.03
"""The share of datagrams whose loss or harm makes some ask a second member."""
_MARKED = 0.5
"""Seconds by which a clock is set that may be marked then."""
_HARMLESS = ("repeats", "replay", "corrupt", "clock_drift", "limits")
"""Faults that hold no copy up."""


def uncopied_spans(scenario: Scenario, *, is_shared: bool = False) -> list[tuple[float, float]]:
    """Spans of time, apart from each other, in which what was admitted may be lost.

    What was counted for all data centers (`is_shared`), the others remember, if they have heard of
    it and live on.
    """
    found: list[tuple[float, float]] = []
    for fault in scenario.faults:
        if fault.verb not in ("crash", "leave"):
            continue
        others = [other for other in scenario.faults if other is not fault]
        is_alone = _is_alone(fault, others, scenario) or _is_parted(fault, others, scenario)
        since = _disturbed_since(fault, others)
        if fault.verb == "leave" and not is_alone and since is None:
            continue
        begin = fault.at if since is None else min(since, fault.at)
        span = float("-inf") if is_alone else begin - UNCOPIED
        if is_shared and is_alone and since is None and _is_elsewhere(fault, others, scenario):
            span = fault.at - _UNTOLD
        found.append((span, fault.at + (_LEAVING if fault.verb == "leave" else _AFTERWARDS)))
    return _joined(found)


def overwhelmed(scenario: Scenario, *, failures: int) -> set[str]:
    """The data centers in which something failed while they had not got over so many `failures`.

    Whose copy is whose, and what of it is news to whom, is told apart for few failures at a time.
    More of them may lose hits or count them twice; what else is promised holds.
    """
    places = members_of(scenario)
    hit: set[str] = set()
    over_at: dict[str, list[float]] = {}
    for fault in sorted(scenario.faults, key=lambda fault: fault.at):
        if not is_strong(fault) or "datacenter" in fault.args or fault.verb == "stall":
            continue  # A process that was stopped loses nothing and finds out what it missed.
        until = fault.at if VERBS[fault.verb].end is None else fault.until
        over = float("inf") if until is None else until + _NEW_COPY
        for datacenter in sorted({places[name][0] for name in _of(fault, scenario)}):
            before = over_at.setdefault(datacenter, [])
            if sum(fault.at <= at for at in before) >= failures:
                hit.add(datacenter)
            before.append(over)
    return hit


def emptied(scenario: Scenario) -> set[str]:
    """The data centers whose members were all down at once: nobody was there to be asked."""
    places = members_of(scenario)
    found: set[str] = set()
    for fault in scenario.faults:
        others = [other for other in scenario.faults if other is not fault]
        if fault.verb in ("crash", "leave") and _is_last(fault, others, scenario, 0.0):
            found |= {places[name][0] for name in _of(fault, scenario)}
    return found


def is_strong(fault: Fault) -> bool:
    """Whether a fault can take a member from others, or make them ask somebody else."""
    if "share" in fault.args:
        return fault.verb in ("loss", "bursts", "corrupt") and float(fault.args["share"]) > _MUCH
    if "by_s" in fault.args:
        return abs(float(fault.args["by_s"])) >= _MARKED
    return fault.verb not in _HARMLESS


def members_of(scenario: Scenario) -> dict[str, tuple[str, str]]:
    """The data center and the zone of each host, by name."""
    return {
        f"n{number + 1}": (
            f"dc{number % scenario.datacenters + 1}",
            f"z{number // scenario.datacenters % scenario.zones + 1}",
        )
        for number in range(scenario.nodes)
    }


def _of(fault: Fault, scenario: Scenario) -> list[str]:
    """The hosts that a fault is about."""
    args, places = fault.args, members_of(scenario)
    if "node" in args:
        return str(args["node"]).split(",")
    if "zone" in args:
        return [name for name, (_, zone) in places.items() if zone == args["zone"]]
    if "datacenter" in args:
        return [name for name, (dc, _) in places.items() if dc == args["datacenter"]]
    return list(places)


def _is_alone(fault: Fault, others: Iterable[Fault], scenario: Scenario) -> bool:
    """Whether nobody in the data center can have all copies when it happens."""
    if fault.verb == "crash" and len(_gone(fault, others, scenario)) > 1:
        return True
    return _is_last(fault, others, scenario)


def _is_parted(fault: Fault, others: Iterable[Fault], scenario: Scenario) -> bool:
    """Whether the only copies may be out of reach when they are needed.

    One failure at a time is what a standby is for: while one is down, and until all is copied
    again, another one in its data center that cannot be reached may have had all there was.
    """
    if fault.verb != "crash":
        return False
    places = members_of(scenario)
    here = {places[name][0] for name in _of(fault, scenario)}
    over = float("inf") if fault.until is None else fault.until + _NEW_COPY
    return any(
        other.verb in _PARTING
        and "datacenter" not in other.args
        and other.at <= over
        and (other.until is None or other.until >= fault.at)
        and here & {places[name][0] for name in _of(other, scenario)}
        for other in others
    )


def _is_last(
    fault: Fault, others: Iterable[Fault], scenario: Scenario, lasts: float = _NEW_COPY
) -> bool:
    """Whether its data center has nobody else then, who was away within so many seconds."""
    places, gone = members_of(scenario), _gone(fault, others, scenario, lasts)
    concerned = {places[name][0] for name in _of(fault, scenario)}
    left = {place[0] for name, place in places.items() if name not in gone}
    return not concerned <= left


def _is_elsewhere(fault: Fault, others: Sequence[Fault], scenario: Scenario) -> bool:
    """Whether all other data centers have heard what there was, and remember it."""
    places = members_of(scenario)
    here = {places[name][0] for name in _of(fault, scenario)}
    away = {place[0] for name, place in places.items() if name in _gone(fault, others, scenario)}
    return away <= here and scenario.datacenters > len(here)


def _gone(
    fault: Fault, others: Iterable[Fault], scenario: Scenario, lasts: float = _NEW_COPY
) -> set[str]:
    """Those that are down with it, or back so shortly that they have nothing yet."""
    gone = set(_of(fault, scenario))
    for other in others:
        if other.verb in ("crash", "leave") and other.at <= fault.at:
            back = float("inf") if other.until is None else other.until + lasts
            if fault.at < back:
                gone.update(_of(other, scenario))
    return gone


def _disturbed_since(fault: Fault, others: Iterable[Fault]) -> float | None:
    """When the disturbances began that last until shortly before it; None when there are none.

    Two of them may have taken the standby and then kept the owner from telling the next one: then
    nothing may be copied.
    """
    begin, end = fault.at, fault.at + (_LEAVING if fault.verb == "leave" else 0.0)
    disturbed = 0
    for other in sorted(others, key=lambda other: other.at, reverse=True):
        if other.verb in _HARMLESS:
            continue
        until = other.at if VERBS[other.verb].end is None else other.until
        if other.at <= end and (until is None or until + _NEW_COPY >= begin):
            disturbed += 1
            begin = min(begin, other.at)
    if disturbed > 1:
        return float("-inf")
    return begin if disturbed else None


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
