"""Hits (admitted units) that a run may lose: the time spans in which faults leave them without a
replica.

Without faults, the replica at the standby is a tenth of a second old. After a network fault it is
older. Without a standby there is no replica. The functions are pure: they map a scenario to spans
of time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import permutations

from msgspec.structs import replace

from hashring import Member, NodeId, Ring, View, shard_of
from simulations.scenarios.faults.injection import VERBS
from simulations.scenarios.scenario import Fault, Scenario

__all__ = [
    "LINK_FAULTS",
    "affected_hosts",
    "faults_between",
    "sides_of",
    "RECOVERY_S",
    "REPLICATION_LAG_S",
    "emptied",
    "losses",
    "is_strong",
    "hosts_of",
    "hosts_of_shard",
    "members_of",
    "overwhelmed",
    "unreplicated_spans",
    "unreachable_spans",
]

REPLICATION_LAG_S = 0.35
"""Hits of this many seconds before a crash may be missing on the standby. It covers one
replication interval, the wait for the previous acknowledgement, and the network delay."""
_CROSS_DC_LAG_S = 2.0
"""Hits of this many seconds before a crash may be missing in other data centers. It covers one
second of delay for small changes, one round, the network delay and one retransmission."""
_ANSWER_DELAY_S = 0.1
"""Seconds that an answer may take to reach its client."""
RECOVERY_S = 8.0
"""Seconds until all members detect a death or a return and every standby has all replicas again."""
_LEAVING_S = 10.1
"""Seconds after which a leaving node has stopped: 5 s for transfers and 5 s for answers at most."""
_ISOLATING = ("crash", "leave", "pause", "stall", "cut", "clog")
"""Faults that make their hosts, and the replicas on them, unreachable."""
LINK_FAULTS = ("cut", "clog", "slow", "spikes", "bursts", "reset", "loss", "corrupt")
"""Faults of links between two sides; the other faults affect hosts."""
_HEAVY_SHARE = 0.03
"""Share of lost or corrupt datagrams above which clients may retry at a second member."""
_SUSPECT_STEP_S = 0.5
"""Smallest clock step, in seconds, that may make other members distrust the clock."""
_HARMLESS = ("repeats", "replay", "corrupt", "clock_drift", "limits", "rules")
"""Faults that delay no replication."""


def unreplicated_spans(scenario: Scenario, *, is_shared: bool = False) -> list[tuple[float, float]]:
    """Return the disjoint time spans whose admitted hits may be lost.

    Counts shared between data centers (`is_shared`) survive in the other data centers if those
    received them and are still alive.
    """
    return _merge_spans([(begin, end) for _, begin, end in losses(scenario, is_shared=is_shared)])


def losses(scenario: Scenario, *, is_shared: bool = False) -> list[tuple[Fault, float, float]]:
    """Return the faults that may lose units, each with the time span of the units."""
    found: list[tuple[Fault, float, float]] = []
    for fault in scenario.faults:
        if fault.verb not in ("crash", "leave"):
            continue
        others = [other for other in scenario.faults if other is not fault]
        is_alone = _has_no_replica(fault, others, scenario) or _is_replica_unreachable(
            fault, others, scenario
        )
        since = _disturbed_since(fault, others)
        if fault.verb == "leave" and not is_alone and since is None:
            continue
        begin = fault.at if since is None else min(since, fault.at)
        span = float("-inf") if is_alone else begin - REPLICATION_LAG_S
        if (
            is_shared
            and is_alone
            and since is None
            and _is_known_elsewhere(fault, others, scenario)
        ):
            span = fault.at - _CROSS_DC_LAG_S
        end = fault.at + (_LEAVING_S if fault.verb == "leave" else _ANSWER_DELAY_S)
        found.append((fault, span, end))
    return found


def unreachable_spans(scenario: Scenario, datacenter: str, key: bytes) -> list[tuple[float, float]]:
    """Return the time spans in which the owner and the standby of a counter are both stalled.

    A third member may then decide without a replica. It sends what it admitted to the first of the
    two that resumes, so the span ends there.
    """
    stalls = [fault for fault in scenario.faults if fault.verb == "stall"]
    found = [
        ((one.args.get("node"), other.args.get("node")), max(one.at, other.at), until)
        for one, other in permutations(stalls, 2)
        if (until := min(one.until or one.at, other.until or other.at)) > max(one.at, other.at)
    ]
    if not found:
        return []
    places = members_of(scenario).items()
    members = tuple([Member(NodeId(name), *place) for name, place in places])
    ring = _ring_of(tuple([each for each in members if each.datacenter == datacenter]))
    owner_and_standby = ring.owners(shard_of(key), 2)
    return _merge_spans(
        [(begin, end + _ANSWER_DELAY_S) for pair, begin, end in found if pair == owner_and_standby]
    )


def _ring_of(members: tuple[Member, ...]) -> Ring:
    return View.of(members).ring(members[0].datacenter)  # The nodes share this ring.


def overwhelmed(scenario: Scenario, *, failures: int) -> set[str]:
    """Return the data centers in which more nodes failed than recovery can handle.

    That means a new failure during the recovery from `failures` earlier ones. Nodes can reconcile
    the replicas of only a few simultaneous failures. More of them may lose hits or count them
    twice. All other invariants still hold.
    """
    places = members_of(scenario)
    hit: set[str] = set()
    over_at: dict[str, list[float]] = {}
    for fault in sorted(scenario.faults, key=lambda fault: fault.at):
        if not is_strong(fault) or "datacenter" in fault.args or fault.verb == "stall":
            continue  # A suspended process loses no data and recovers what it missed.
        until = fault.at if VERBS[fault.verb].end is None else fault.until
        over = float("inf") if until is None else until + RECOVERY_S
        for datacenter in sorted({places[name][0] for name in hosts_of(fault, scenario)}):
            before = over_at.setdefault(datacenter, [])
            if sum(fault.at <= at for at in before) >= failures:
                hit.add(datacenter)
            before.append(over)
    return hit


def emptied(scenario: Scenario) -> set[str]:
    """Return the data centers in which all members were down at the same time."""
    places = members_of(scenario)
    found: set[str] = set()
    for fault in scenario.faults:
        others = [other for other in scenario.faults if other is not fault]
        if fault.verb in ("crash", "leave") and _empties_datacenter(fault, others, scenario, 0.0):
            found |= {places[name][0] for name in hosts_of(fault, scenario)}
    return found


def is_strong(fault: Fault) -> bool:
    """Return whether a fault can make a member unreachable, or make clients retry at another
    member."""
    if "share" in fault.args:
        return (
            fault.verb in ("loss", "bursts", "corrupt")
            and float(fault.args["share"]) > _HEAVY_SHARE
        )
    if "by_s" in fault.args:
        return abs(float(fault.args["by_s"])) >= _SUSPECT_STEP_S
    return fault.verb not in _HARMLESS


def members_of(scenario: Scenario) -> dict[str, tuple[str, str]]:
    """Return the data center and the zone of each host, by host name."""
    return {
        f"n{number + 1}": (
            f"dc{number % scenario.datacenters + 1}",
            f"z{number // scenario.datacenters % scenario.zones + 1}",
        )
        for number in range(scenario.nodes)
    }


def hosts_of(fault: Fault, scenario: Scenario) -> list[str]:
    """Return the hosts that a fault affects directly."""
    args, places = fault.args, members_of(scenario)
    if "node" in args:
        return str(args["node"]).split(",")
    if "zone" in args:
        return [name for name, (_, zone) in places.items() if zone == args["zone"]]
    if "datacenter" in args:
        return [name for name, (dc, _) in places.items() if dc == args["datacenter"]]
    return list(places)


def sides_of(fault: Fault, scenario: Scenario) -> tuple[set[str], set[str]]:
    """Return the hosts on both sides of a fault of links."""
    some = set(hosts_of(fault, scenario))
    if "from" in fault.args:
        return some, set(str(fault.args["from"]).split(","))
    return some, members_of(scenario).keys() - some or some


def faults_between(scenario: Scenario) -> Iterator[tuple[Fault, set[frozenset[str]]]]:
    """Yield the faults of links between data centers, with the pairs of these data centers."""
    members = members_of(scenario)
    for fault in scenario.faults:
        if fault.verb in LINK_FAULTS and is_strong(fault):
            some, others = sides_of(fault, scenario)
            here, there = ({members[name][0] for name in side} for side in (some, others))
            pairs = {frozenset((one, two)) for one in here for two in there if one != two}
            if pairs:
                yield fault, pairs


def affected_hosts(fault: Fault, scenario: Scenario) -> dict[str, frozenset[str]]:
    """Return the hosts that a fault affects, by data center.

    A fault of links concerns a data center only if hosts on both sides are in it. Where it cuts a
    group of hosts from all others, the keys of all hosts are concerned.
    """
    members = members_of(scenario)
    some, others = sides_of(fault, scenario)
    found: dict[str, frozenset[str]] = {}
    for datacenter in sorted({where[0] for where in members.values()}):
        here = {name for name, where in members.items() if where[0] == datacenter}
        if fault.verb not in LINK_FAULTS:
            hosts = some & here
        elif not (some & here and others & here):
            hosts = set()
        elif "from" in fault.args:
            hosts = (some | others) & here
        else:
            hosts = here
        if hosts:
            found[datacenter] = frozenset(hosts)
    return found


def _has_no_replica(fault: Fault, others: Iterable[Fault], scenario: Scenario) -> bool:
    """Return whether a fault begins when no other member of the data center can have replicas of
    all counters."""
    if fault.verb == "crash" and len(_down_hosts(fault, others, scenario)) > 1:
        return True
    return _empties_datacenter(fault, others, scenario)


def _is_replica_unreachable(fault: Fault, others: Iterable[Fault], scenario: Scenario) -> bool:
    """Return whether the only replicas of counters may be unreachable when the owner fails.

    A standby covers one failure at a time. Until replication has caught up after a failure, another
    unreachable member of the data center may hold the only replica.
    """
    if fault.verb != "crash":
        return False
    places = members_of(scenario)
    here = {places[name][0] for name in hosts_of(fault, scenario)}
    over = float("inf") if fault.until is None else fault.until + RECOVERY_S
    return any(
        other.verb in _ISOLATING
        and "datacenter" not in other.args
        and other.at <= over
        and (other.until is None or other.until >= fault.at)
        and here & {places[name][0] for name in hosts_of(other, scenario)}
        for other in others
    )


def _empties_datacenter(
    fault: Fault, others: Iterable[Fault], scenario: Scenario, lasts: float = RECOVERY_S
) -> bool:
    """Return whether the fault leaves a data center of its hosts without any member.

    A member counts as absent until `lasts` seconds after its return."""
    places, gone = members_of(scenario), _down_hosts(fault, others, scenario, lasts)
    concerned = {places[name][0] for name in hosts_of(fault, scenario)}
    left = {place[0] for name, place in places.items() if name not in gone}
    return not concerned <= left


def _is_known_elsewhere(fault: Fault, others: Sequence[Fault], scenario: Scenario) -> bool:
    """Return whether another data center has received the counts that a fault destroys, and does
    not fail."""
    places = members_of(scenario)
    here = {places[name][0] for name in hosts_of(fault, scenario)}
    away = {
        place[0] for name, place in places.items() if name in _down_hosts(fault, others, scenario)
    }
    return away <= here and scenario.datacenters > len(here)


def _down_hosts(
    fault: Fault, others: Iterable[Fault], scenario: Scenario, lasts: float = RECOVERY_S
) -> set[str]:
    """Return the hosts that are down during a fault, or returned less than `lasts` seconds before
    it."""
    gone = set(hosts_of(fault, scenario))
    for other in others:
        if other.verb in ("crash", "leave") and other.at <= fault.at:
            back = float("inf") if other.until is None else other.until + lasts
            if fault.at < back:
                gone.update(hosts_of(other, scenario))
    return gone


def _disturbed_since(fault: Fault, others: Iterable[Fault]) -> float | None:
    """Return the start of the earlier faults that may delay replication when a fault begins; None
    without them.

    Two such faults may remove the standby and then block replication to the next one. The result is
    then minus infinity: possibly nothing was replicated.
    """
    begin, end = fault.at, fault.at + (_LEAVING_S if fault.verb == "leave" else 0.0)
    disturbed = 0
    for other in sorted(others, key=lambda other: other.at, reverse=True):
        if other.verb in _HARMLESS:
            continue
        until = other.at if VERBS[other.verb].end is None else other.until
        if other.at <= end and (until is None or until + RECOVERY_S >= begin):
            disturbed += 1
            begin = min(begin, other.at)
    if disturbed > 1:
        return float("-inf")
    return begin if disturbed else None


def _merge_spans(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


@cache
def _order_of(members: tuple[Member, ...]) -> Ring:
    """Return the ring of members as if they were in one zone."""
    return _ring_of(tuple([replace(each, zone="") for each in members]))


def hosts_of_shard(members: tuple[Member, ...], shard: int) -> tuple[str, ...]:
    """Return the hosts of a shard in the order in which they decide for it.

    The standby decides while the owner is unreachable. It is in another zone, so after the death of
    the owner another member may become the owner.
    """
    # In one zone, the owners of a shard are all members in the order of the ring.
    order = _order_of(members).owners(shard, len(members)) if members else ()
    zone_of = {each.name: each.zone for each in members}
    left = Counter(zone_of.values())
    found: dict[str, None] = {}
    for at, owner in enumerate(order):
        zone = zone_of[owner]
        has_zones = left[zone] < len(order) - at
        others = order[at + 1 :] if has_zones else order[at + 1 : at + 2]
        standby = next((each for each in others if not has_zones or zone_of[each] != zone), owner)
        found[owner] = found[standby] = None
        left[zone] -= 1
    return tuple(found)
