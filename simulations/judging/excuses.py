"""Excuses: when, where and why a decision need not be the decision of one exact counter.

An excuse is a value. It names its reason, its fault, the data centers and hosts that the fault
affects, and its interval. A decision outside of every excuse is judged exactly.

The interval begins with the fault. It ends when the world has observed that all shards of the data
center are on their usual owners again, and at the latest a stated settling time after the fault.
Faults that overlap with this time extend it, since they may delay the recovery.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from hashring import Member, NodeId
from ringfence.peering.link import LinkSettings
from ringfence.wire import Source
from simulations.judging.allowed_loss import (
    LINK_FAULTS,
    REPLICATION_LAG_S,
    affected_hosts,
    faults_between,
    hosts_of,
    hosts_of_shard,
    is_strong,
    losses,
    members_of,
)
from simulations.judging.disturbance import Disturbances
from simulations.judging.ledger import Answered
from simulations.scenarios.fault_injection import VERBS, held_up_s
from simulations.scenarios.latency import round_trip_s
from simulations.scenarios.scenario import Fault, Scenario

__all__ = ["REASONS", "SETTLING_S", "Excuse", "Excuses", "Place"]

SETTLING_S = 30.0
"""Seconds after a fault in which its data center must have settled."""
_CROSS_SETTLING_S = 10.0
"""Seconds after a fault of links between data centers until their counts are exchanged again."""
CROSS_DC_LAG_S = 2.5
"""Seconds in which counts reach another data center: one second of delay for small changes, one
round, the network delay and one retransmission."""
_LOSSY_TRANSFER_S = 0.2
"""Seconds by which transferred hits may seem too young. A transfer carries ages, and the loss of
one or two datagrams delays it by this much."""
_TRANSFER_S = 0.05
"""The same without loss: a few round trips for a shard in several parts."""
_DRIFT_SHARE = 0.001
"""Part by which a period may seem longer on a host with clock drift. Generated drifts are at
most 500 ppm, and the correction towards the other clocks adds as much again."""
_SLEW = 0.005
"""Seconds by which a clock follows the other clocks each second."""
_ANSWER_DELAY_S = 0.1
"""Seconds that an answer may take to reach its client."""
_NEWS_S = 1.0
"""Seconds after the observed settling until clients have the new members, and until answers that
were under way have arrived."""
_CONNECT_S = LinkSettings().handshake_timeout + LinkSettings().max_backoff
"""Longest time after a cut until a client that began to connect during the cut has connected."""
_DELAYING = ("slow", "spikes", "clog", "busy", "pause", "stall")
"""Faults that delay messages in one direction."""
_SPLITTING = ("cut", "clog", "pause", "slow", "spikes", "busy", "reset", "clock_step")
"""Faults during which two members may decide for one counter."""

REASONS = {
    "owner_away": "a node crashed, left or was suspended: its standby decides",
    "links": "messages are lost, late or held: the owner may be unreachable, or two members decide",
    "busy": "a host is slow: callers do not wait for it",
    "errors": "a node fails to handle requests, because a fault raises errors",
    "limits": "the limit changes around the check, or another node with lower limits may decide",
    "clock": "the clock of a host is wrong until the other members distrust or correct it",
    "divided": "the part of the asking data center is used up, but another may have unused units",
    "break": "connections broke around the check: a standby decides",
}
"""Reasons of excuses, with their meaning."""
_REASON_OF = {
    **dict.fromkeys(("crash", "leave", "pause", "stall"), "owner_away"),
    **dict.fromkeys(LINK_FAULTS, "links"),
    "busy": "busy",
    "errors": "errors",
    "clock_step": "clock",
    "clock_drift": "clock",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a counter is: its data center, its shard, and the hosts that may decide it, the owner
    first and then the standbys in their order."""

    datacenter: str
    shard: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Excuse:
    """Permission to differ from an exact counter, with reason, scope and interval."""

    reason: str
    """Name in `REASONS`."""
    fault: Fault
    datacenter: str
    hosts: frozenset[str]
    """Hosts that the fault affects directly."""
    reach: int
    """Number of hosts of a counter, the owner first, among which an affected one matters."""
    begin: float
    end: float

    @property
    def is_splitting(self) -> bool:
        """Return whether a second member may admit the whole limit again."""
        return (
            self.fault.verb in _SPLITTING
            or "seedless" in self.fault.args
            or "share" in self.fault.args
        )

    @property
    def is_alone(self) -> bool:
        """Return whether the affected host decides nothing meanwhile, so that one member decides
        each of its counters."""
        return self.fault.verb in ("crash", "leave") and "seedless" not in self.fault.args

    def concerns(self, place: Place, client_host: str = "") -> bool:
        """Return whether the excuse concerns a counter, or the client on `client_host`."""
        return place.datacenter == self.datacenter and (
            client_host in self.hosts or not self.hosts.isdisjoint(place.hosts[: self.reach])
        )


@dataclass(frozen=True, slots=True)
class Loss:
    """Interval whose units a crash may lose, on the counters of some hosts."""

    begin: float
    end: float
    datacenter: str
    hosts: frozenset[str]
    reach: int


class Excuses:
    """All excuses of a run."""

    def __init__(self, scenario: Scenario, disturbances: Disturbances) -> None:
        self._scenario = scenario
        self._disturbances = disturbances
        self.datacenters = scenario.datacenters
        self.has_breaks = scenario.network.resets > 0
        """Whether connections break without a fault, so that callers ask again."""
        self.has_loss = scenario.network.loss > 0
        """Whether datagrams are lost without a fault."""
        self._by_datacenter: dict[str, list[Excuse]] = {}
        self._members = members_of(scenario)
        self._places: dict[tuple[str, int], Place] = {}
        self._client_hosts: dict[tuple[str, str], str] = {}
        self._of_groups: dict[tuple[str, str, str, float], list[Excuse]] = {}
        """Excuses of groups that no member answered in time, by `_group_of`."""
        self._losses = [
            Loss(begin, end, datacenter, frozenset(hosts), len(self._members))
            for fault, begin, end in losses(scenario)
            for datacenter, hosts in sorted(affected_hosts(fault, scenario).items())
        ]
        self._between = [
            (fault, datacenters, _until(fault) + _CROSS_SETTLING_S)
            for fault, datacenters in faults_between(scenario)
        ]
        verbs = {fault.verb for fault in scenario.faults}
        has_moves = any(is_strong(fault) for fault in scenario.faults)
        lossy = _LOSSY_TRANSFER_S if scenario.network.loss > 0 else 0.0
        self._delayed_from = min(
            [fault.at for fault in scenario.faults if fault.verb in _DELAYING], default=inf
        )
        stepped = [name for fault in scenario.faults if fault.verb == "clock_step"
                   for name in hosts_of(fault, scenario)]  # fmt: skip
        members = len(self._members)
        self._has_most_clocks_stepped = 2 < members <= 2 * len(set(stepped))
        self._transfer_s = _TRANSFER_S + lossy if has_moves else 0.0
        self._drift = _DRIFT_SHARE if "clock_drift" in verbs else 0.0
        for excuse in _excuses_of(scenario, disturbances):
            self._by_datacenter.setdefault(excuse.datacenter, []).append(excuse)

    @property
    def read_at(self) -> float:
        """Return when the final reading of all counters begins."""
        return self._scenario.read_at

    def of(self, place: Place, answer: Answered) -> list[Excuse]:
        """Return the excuses for one answer: for its counter and its client, at its time."""
        client_host = self.host_of(answer)
        places = [place]
        if answer.datacenter != place.datacenter and not answer.is_counted:
            # A member of the client's data center forwards the check, or fails to.
            places.append(self.place(answer.datacenter, place.shard))
        found = [
            each
            for where in places
            for each in self._by_datacenter.get(where.datacenter, ())
            if each.begin <= answer.answered_at
            and each.concerns(where, client_host)
            and (answer.asked_at <= each.end or self._has_later_effect(each, where, answer))
        ]
        if answer.datacenter != place.datacenter:
            both = {answer.datacenter, place.datacenter}
            found += [
                Excuse("links", fault, place.datacenter, frozenset(), 0, fault.at, end)
                for fault, datacenters, end in self._between
                if fault.at <= answer.answered_at and answer.asked_at <= end and both <= datacenters
            ]
        if not answer.is_counted:
            found += [e for e in self._of_groups.get(_group_of(answer), ()) if e not in found]
        return found

    def add_to_group(self, place: Place, answer: Answered) -> None:
        """Let the excuses of a check that no member answered in time hold for its whole group,
        because a group of limits is answered as a whole."""
        if not answer.is_counted and (found := self.of(place, answer)):
            self._of_groups[_group_of(answer)] = found

    def _has_later_effect(self, excuse: Excuse, place: Place, answer: Answered) -> bool:
        """Return whether a fault affects a check after its shards have settled: members distrust a
        stepped clock later, or a client waits for a handshake that a cut interrupted."""
        at, end, verb = answer.asked_at, answer.answered_at + _NEWS_S, excuse.fault.verb
        if verb == "clock_step":
            return self.is_disturbed(place, at - _NEWS_S, end)
        return verb == "cut" and not answer.is_counted and at <= _until(excuse.fault) + _CONNECT_S

    def is_owner_away(self, place: Place, answer: Answered) -> bool:
        """Return whether the owner of a counter had no running process at some time of a check, so
        that its standby must decide."""
        return any(
            _REASON_OF[each.fault.verb] == "owner_away"
            and place.hosts[0] in each.hosts
            and each.begin <= answer.answered_at
            and answer.asked_at <= _until(each.fault)
            for each in self._by_datacenter.get(place.datacenter, ())
        )

    def sides(self, place: Place, answer: Answered, found: Sequence[Excuse]) -> int:
        """Return how many more members may admit a whole limit, under the excuses of a check.

        While the owner and the standby of a counter are both suspended, a third member decides
        without a replica.
        """
        stalled = {
            name
            for each in found
            if each.fault.verb == "stall"
            and answer.asked_at <= _until(each.fault) + _ANSWER_DELAY_S
            for name in each.hosts
        }
        has_no_replica = stalled.issuperset(place.hosts[:2])
        return sum(each.is_splitting for each in found) + has_no_replica

    def is_disturbed(self, place: Place, begin: float, end: float) -> bool:
        """Return whether a shard was not with its usual owner between two instants."""
        return self._disturbances.is_disturbed(place.datacenter, place.shard, begin, end)

    def clock_error_s(self, place: Place, answer: Answered, period_s: float) -> float:
        """Return by how many seconds the age of a hit may seem wrong to the decider of a check.

        After the step of the owner's clock, hits with wrong ages count for one period. A cached
        denial was decided up to one period earlier.
        """
        lasts = period_s * (2 if answer.source is Source.CACHE else 1)
        error = self._clock_error_s(place, answer.asked_at, answer.answered_at, lasts)
        return error + self._age_error_s(place, answer.asked_at, answer.answered_at, period_s)

    def clock_offset_s(self, place: Place, begin: float, end: float) -> float:
        """Return by how many seconds clock steps may shift the clock of a decider.

        The shift of a stepped clock may last: clocks follow their median, and a lone clock is never
        corrected.
        """
        is_disturbed = self.is_disturbed(place, begin - _NEWS_S, end + _NEWS_S)
        return self.followed_s(place, end) + sum(
            abs(float(each.fault.args["by_s"]))
            if is_disturbed or self._is_stepped(place, each)
            else self._slewed_s(each, end)
            for each in self._steps(place, end)
        )

    def clock_steps_s(self, place: Place) -> float:
        """Return the sum of all steps of the clocks that may decide a counter."""
        return self._clock_error_s(place, -inf, inf, inf)

    def reading_error_s(self, place: Place, at: float, period_s: float) -> float:
        """Return by how many seconds the age of a hit may seem wrong at a reading."""
        error = self._clock_error_s(place, at, at, period_s)
        return error + self._age_error_s(place, at, at, period_s)

    def mismeasured_s(self, end: float, period_s: float) -> float:
        """Return by how many seconds a clock may have followed offsets in one period that probes
        measured wrongly, since faults delayed them."""
        return _SLEW * max(0.0, min(period_s, end - self._delayed_from))

    def followed_s(self, place: Place, end: float) -> float:
        """Return by how many seconds a clock may have followed stepped clocks of other hosts and
        data centers."""
        near = [each.fault for each in self._steps(place, end)]
        return sum(
            min(abs(float(fault.args["by_s"])), _SLEW * (end - fault.at))
            for fault in self._scenario.faults
            if fault.verb == "clock_step" and fault.at <= end and fault not in near
        )

    def _age_error_s(self, place: Place, begin: float, end: float, period_s: float) -> float:
        """Return by how many seconds a transfer of the shard, or clock drift, changes the age of a
        hit. No hit is older than the run."""
        is_moved = self._disturbances.is_disturbed(
            place.datacenter, place.shard, begin - period_s, end
        )
        drift = self._drift * min(period_s, self._scenario.read_at)
        if not is_moved:
            return drift
        return drift + self._transfer_s + self._held_up_s(place, begin - period_s, end)

    def _held_up_s(self, place: Place, begin: float, end: float) -> float:
        """Return by how many seconds faults may have held up messages with the ages of hits between
        two instants. A message that arrives late makes its hits seem younger."""
        return sum(
            held_up_s(each.fault)
            for each in self._by_datacenter.get(place.datacenter, ())
            if each.begin <= end and begin <= each.end and each.concerns(place)
        )

    def _clock_error_s(self, place: Place, begin: float, end: float, lasts: float) -> float:
        """Return by how many seconds a clock may have measured a span of `lasts` seconds wrongly.

        A clock that is set back stands still for as long. Other clocks follow a stepped clock
        slowly.
        """
        error = 0.0
        for each in self._steps(place, end):
            by_s = float(each.fault.args["by_s"])
            over = max(each.end, each.begin + max(0.0, -by_s)) + lasts + abs(by_s)
            since = max(each.begin, begin - lasts)
            is_full = self._is_stepped(place, each) or self.is_disturbed(place, since, end)
            error += abs(by_s) if is_full and begin <= over else self._slewed_s(each, end, lasts)
        return error

    def _steps(self, place: Place, end: float) -> Iterator[Excuse]:
        """Yield the steps of clocks before an instant that concern a counter."""
        for each in self._by_datacenter.get(place.datacenter, ()):
            if each.fault.verb == "clock_step" and each.begin <= end and each.concerns(place):
                yield each

    def _is_stepped(self, place: Place, step: Excuse) -> bool:
        """Return whether a step changed the clock of the owner at once: it was the owner's clock,
        or most other clocks were stepped too, which the owner then follows."""
        return self._has_most_clocks_stepped or place.hosts[0] in step.hosts

    def _slewed_s(self, step: Excuse, end: float, lasts: float = inf) -> float:
        """Return by how many seconds a clock may have followed a stepped one in `lasts` seconds."""
        return min(abs(float(step.fault.args["by_s"])), _SLEW * min(lasts, end - step.begin))

    def shared_at(self, here: Place, there: Place, answer: Answered) -> float:
        """Return when the owner of a counter in one data center certainly has the units of a check
        in another one."""
        at = answer.answered_at + CROSS_DC_LAG_S
        ends = [
            each.end
            for place in (here, there)
            for each in self._by_datacenter.get(place.datacenter, ())
            if each.begin <= at and answer.asked_at <= each.end and each.concerns(place)
        ]
        ends += [
            end
            for fault, datacenters, end in self._between
            if fault.at <= at
            and answer.asked_at <= end
            and {here.datacenter, there.datacenter} <= datacenters
        ]
        return max([answer.answered_at, *ends]) + CROSS_DC_LAG_S

    def undisturbed_until(self, places: Iterable[Place], instant: float) -> float:
        """Return when the next fault begins that may change the units of a counter; the instant
        itself during such a fault."""
        begins = [
            max(each.begin, instant)
            for place in places
            for each in self._by_datacenter.get(place.datacenter, ())
            if each.end >= instant and each.concerns(place)
        ]
        return min(begins, default=inf)

    def may_be_lost(self, place: Place, *instants: float) -> bool:
        """Return whether a crash may have lost what a counter did at one of some instants."""
        return any(
            loss.begin <= instant <= loss.end
            and loss.datacenter == place.datacenter
            and not loss.hosts.isdisjoint(place.hosts[: loss.reach])
            for loss in self._losses
            for instant in instants
        )

    def replicated_at(self, place: Place, answer: Answered) -> float:
        """Return when the standby certainly counts the units of a check whose owner was suspended
        before it replicated them; minus infinity if it did."""
        return max(
            [
                each.end
                for each in self._by_datacenter.get(place.datacenter, ())
                if each.fault.verb == "stall"
                and each.begin - REPLICATION_LAG_S <= answer.answered_at <= each.end
                and each.concerns(place)
            ],
            default=-inf,
        )

    def host_of(self, answer: Answered) -> str:
        """Return the host beside a client, whose links the faults of this host affect."""
        client = answer.datacenter, answer.client
        if client not in self._client_hosts:
            _, _, number = answer.client.rpartition("-")
            names = [name for name, (dc, _) in self._members.items() if dc == answer.datacenter]
            found = names[int(number) % len(names)] if number.isdigit() and names else ""
            self._client_hosts[client] = found
        return self._client_hosts[client]

    def round_trip_s(self, datacenter: str) -> float:
        """Return the shortest time in which a message reaches another data center and its answer
        comes back; infinity without another one."""
        places = tuple(sorted(set(self._members.values())))
        return round_trip_s(self._scenario.network.latency, places, datacenter)

    def place(self, datacenter: str, shard: int) -> Place:
        """Return the place of a shard in a data center."""
        if (datacenter, shard) not in self._places:
            members = tuple(
                Member(NodeId(name), *where)
                for name, where in self._members.items()
                if where[0] == datacenter
            )
            hosts = hosts_of_shard(members, shard)
            self._places[datacenter, shard] = Place(datacenter, shard, hosts)
        return self._places[datacenter, shard]


def _group_of(answer: Answered) -> tuple[str, str, str, float]:
    """Return what the checks of one group have in common: client, key and time of the request."""
    return answer.datacenter, answer.client, answer.key, answer.asked_at


def _excuses_of(scenario: Scenario, disturbances: Disturbances) -> Iterable[Excuse]:
    strong = [each for each in scenario.faults if is_strong(each) or each.verb == "clock_step"]
    for fault in strong:
        for datacenter, hosts in sorted(affected_hosts(fault, scenario).items()):
            others = [
                other
                for other in strong
                if other is not fault and datacenter in affected_hosts(other, scenario)
            ]
            if fault.verb == "leave" and not _is_abrupt(fault, others, datacenter, scenario):
                continue  # A graceful leave transfers its shards, so every decision is exact.
            end = _end(fault, others, datacenter, disturbances)
            beside = [
                other
                for other in others
                if other.at <= end and _until(other) >= fault.at - SETTLING_S
            ]
            reach = 2 + len({name for other in beside for name in hosts_of(other, scenario)})
            yield Excuse(_REASON_OF[fault.verb], fault, datacenter, hosts, reach, fault.at, end)


def _is_abrupt(fault: Fault, others: Sequence[Fault], datacenter: str, scenario: Scenario) -> bool:
    """Return whether a leave is more than a transfer of shards: it leaves no member in the data
    center, or the node later starts without a seed."""
    gone = set(hosts_of(fault, scenario))
    for other in others:
        is_away = other.at <= _until(fault) and fault.at <= _until(other) + SETTLING_S
        if other.verb in ("crash", "leave") and is_away:
            gone.update(hosts_of(other, scenario))
    members = members_of(scenario)
    return "seedless" in fault.args or all(
        name in gone for name, where in members.items() if where[0] == datacenter
    )


def _until(fault: Fault) -> float:
    if VERBS[fault.verb].end is None:
        return fault.at
    return inf if fault.until is None else fault.until


def _end(
    fault: Fault, others: Sequence[Fault], datacenter: str, disturbances: Disturbances
) -> float:
    """Return when the effects of a fault must be over: at the observed settling, or at the stated
    time after the last of the overlapping faults."""
    latest = _until(fault) + SETTLING_S
    for other in sorted(others, key=lambda other: other.at):
        if other.at <= latest:
            latest = max(latest, _until(other) + SETTLING_S)
    return min(latest, disturbances.settled_after(datacenter, _until(fault)) + _NEWS_S)
