"""All excuses of a run, and what else faults may change: lost units, and when units are known."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from hashring import Member, NodeId
from ringfence.peering.link import LinkSettings
from simulations.judging.allowed_loss import (
    RECOVERY_S,
    REPLICATION_LAG_S,
    affected_hosts,
    faults_between,
    hosts_of,
    hosts_of_shard,
    losses,
    members_of,
)
from simulations.judging.broken_connections import BrokenConnections
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses.clock_errors import ClockErrors
from simulations.judging.excuses.excuse import (
    NEWS_S,
    REASON_OF,
    Excuse,
    Place,
    excuses_of,
    until_of,
)
from simulations.judging.excuses.holders import Holders, Tenure
from simulations.judging.ledger import Answered
from simulations.scenarios.latency import round_trip_s
from simulations.scenarios.scenario import Scenario

__all__ = ["Excuses"]

_CROSS_SETTLING_S = 10.0
"""Seconds after a fault of links between data centers until their counts are exchanged again."""
_CROSS_DC_LAG_S = 2.5
"""Seconds in which counts reach another data center.

They are one second of delay for small changes, one round, the network delay and one
retransmission."""
_ANSWER_DELAY_S = 0.1
"""Seconds that an answer may take to reach its client."""
_CONNECT_S = LinkSettings().handshake_timeout + LinkSettings().max_backoff
"""Longest time after a cut until a client that began to connect during the cut has connected."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Interval whose units a crash may lose, on the counters of some hosts."""

    at: float
    """Begin of the fault that loses them."""
    begin: float
    end: float
    datacenter: str
    hosts: frozenset[str]
    reach: int


class Excuses:
    """All excuses of a run."""

    def __init__(
        self,
        scenario: Scenario,
        disturbances: Disturbances,
        broken: BrokenConnections | None = None,
        holders: Holders | None = None,
        longest_queue_s: float = 0.0,
    ) -> None:
        self._scenario = scenario
        self._disturbances = disturbances
        self._broken = broken or BrokenConnections()
        self._holders = holders or Holders()
        self.datacenters = scenario.datacenters
        self._by_datacenter: dict[str, list[Excuse]] = {}
        self._members = members_of(scenario)
        self._places: dict[tuple[str, int], Place] = {}
        self._client_hosts: dict[tuple[str, str], str] = {}
        self._of_groups: dict[tuple[str, str, str, float], list[Excuse]] = {}
        """Excuses of groups that no member answered in time, by `Answered.group`."""
        self._losses = [
            Loss(fault.at, begin, end, datacenter, frozenset(hosts), len(self._members))
            for fault, begin, end in losses(scenario)
            for datacenter, hosts in sorted(affected_hosts(fault, scenario).items())
        ]
        self._between = [
            (fault, pairs, until_of(fault) + _CROSS_SETTLING_S)
            for fault, pairs in faults_between(scenario)
        ]
        for excuse in excuses_of(scenario, disturbances):
            self._by_datacenter.setdefault(excuse.datacenter, []).append(excuse)
        self.clocks = ClockErrors(scenario, disturbances, self._by_datacenter, longest_queue_s)

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
            both = frozenset((answer.datacenter, place.datacenter))
            found += [
                Excuse("links", fault, place.datacenter, frozenset(), 0, fault.at, end)
                for fault, pairs, end in self._between
                if fault.at <= answer.answered_at and answer.asked_at <= end and both in pairs
            ]
        if not answer.is_counted:
            found += [e for e in self._of_groups.get(answer.group, ()) if e not in found]
        return found

    def add_to_group(self, place: Place, answer: Answered) -> None:
        """Add the excuses of a check that no member answered in time to its whole group.

        A group of limits is answered as a whole.
        """
        if found := self.of(place, answer):
            self._of_groups[answer.group] = found

    def _has_later_effect(self, excuse: Excuse, place: Place, answer: Answered) -> bool:
        """Return whether a fault affects a check after its shards have settled.

        Members may distrust a stepped clock later. A client may wait for a handshake that a cut
        interrupted.
        """
        at, end, verb = answer.asked_at, answer.answered_at + NEWS_S, excuse.fault.verb
        if verb == "clock_step":
            return self.is_disturbed(place, at - NEWS_S, end)
        return verb == "cut" and not answer.is_counted and at <= until_of(excuse.fault) + _CONNECT_S

    def is_owner_away(self, place: Place, answer: Answered) -> bool:
        """Return whether the owner of a counter had no running process at some time of a check.

        Its standby must then decide.
        """
        return any(
            REASON_OF[each.fault.verb] == "owner_away"
            and place.hosts[0] in each.hosts
            and each.begin <= answer.answered_at
            and answer.asked_at <= until_of(each.fault)
            for each in self._by_datacenter.get(place.datacenter, ())
        )

    def seedless(self, place: Place, host: str) -> list[tuple[float, float]]:
        """Return the intervals in which a host may know no other data center, because it restarted
        and found no node to join."""
        return [
            (each.begin, each.end)
            for each in self._by_datacenter.get(place.datacenter, ())
            if "seedless" in each.fault.args
            and host in each.hosts
            and each.begin >= until_of(each.fault)
        ]

    def sides(self, place: Place, answer: Answered, found: Sequence[Excuse]) -> int:
        """Return how many more members may admit a whole limit, under the excuses of a check.

        While the owner and the standby of a counter are both suspended, a third member decides
        without a replica.
        """
        stalled = {
            name
            for each in found
            if each.fault.verb == "stall"
            and answer.asked_at <= until_of(each.fault) + _ANSWER_DELAY_S
            for name in each.hosts
        }
        has_no_replica = stalled.issuperset(place.hosts[:2])
        return sum(each.is_splitting for each in found) + has_no_replica

    def tenure(self, place: Place, begin: float, end: float) -> Tenure | None:
        """Return the time around an interval in which one host alone held a shard, if any."""
        return self._holders.tenure(place.hosts, place.shard, begin, end)

    def is_disturbed(self, place: Place, begin: float, end: float) -> bool:
        """Return whether a shard was not with its usual owner between two instants."""
        return self._disturbances.is_disturbed(place.datacenter, place.shard, begin, end)

    def disturbed_s(self, place: Place, begin: float, end: float) -> float:
        """Return for how many seconds at most a shard was continuously observed not with its usual
        owner, between two instants."""
        spans = self._disturbances.spans(place.datacenter, place.shard)
        lasting = [min(last, end) - max(first, begin) for first, last in spans if first > -inf]
        return max(lasting, default=0.0)

    def shared_at(self, here: Place, there: Place, answer: Answered) -> float:
        """Return when the owner of a counter in one data center certainly has the units of a check
        in another one.

        A fault that begins before the counts have arrived delays them until its own end.
        """
        return self._exchanged_at(here, there, answer.asked_at, answer.answered_at)

    def gaps(self, here: Place, there: Place, answer: Answered) -> list[tuple[float, float]]:
        """Return the intervals in which an owner may lack the units of another data center's check.

        A crash has lost the units after their arrival. They arrive again when both data centers can
        exchange counts.
        """
        shared_at = self.shared_at(here, there, answer)
        return [
            (loss.at, self._exchanged_at(here, there, loss.at, loss.end))
            for loss in self._losses_of(here)
            if loss.begin <= shared_at
            and answer.asked_at <= loss.end
            and self._may_empty(here, loss)
        ]

    def _may_empty(self, place: Place, loss: Loss) -> bool:
        """Return whether a loss may concern the member that has a counter.

        That member is the first of the counter's hosts that runs, or a host before it that has just
        returned. An owner without a fault keeps its counters when other members fail.
        """
        gone = {
            name
            for fault in self._scenario.faults
            if fault.verb in ("crash", "leave")
            and fault.at < loss.at <= until_of(fault) + RECOVERY_S
            for name in hosts_of(fault, self._scenario)
        }
        first_up = next((at for at, name in enumerate(place.hosts) if name not in gone), None)
        holders = place.hosts[: None if first_up is None else first_up + 1]
        return not loss.hosts.isdisjoint(holders) or any(
            not each.hosts.isdisjoint(holders) and each.begin <= loss.end and loss.at <= each.end
            for each in self._by_datacenter.get(place.datacenter, ())
        )

    def _exchanged_at(self, here: Place, there: Place, begin: float, end: float) -> float:
        """Return when counts from one interval have certainly reached another data center."""
        both = frozenset((here.datacenter, there.datacenter))
        spans = [
            (each.begin, each.end)
            for place in (here, there)
            for each in self._by_datacenter.get(place.datacenter, ())
            if begin <= each.end and each.concerns(place)
        ]
        spans += [
            (fault.at, last)
            for fault, pairs, last in self._between
            if begin <= last and both in pairs
        ]
        known = end + _CROSS_DC_LAG_S
        for first, last in sorted(spans):
            if first <= known:
                known = max(known, last + _CROSS_DC_LAG_S)
        return known

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

    def is_broken(self, place: Place, answer: Answered, end: float) -> bool:
        """Return whether a connection of the client, or of a member that may forward its checks,
        broke between a check and `end`. Then the check may have been sent again."""
        askers = self.place(answer.datacenter, place.shard).hosts
        return self._broken.is_near({answer.client, *place.hosts, *askers}, answer.asked_at, end)

    def have_lost_link(self, some: Sequence[str], others: Sequence[str], answer: Answered) -> bool:
        """Return whether two hosts, one of each group, may have had no connection during a check.

        Their connection broke during the check, or shortly before it.
        """
        return any(self._broken.has_lost(one, other, answer) for one in some for other in others)

    def next_begin(self, place: Place, instant: float) -> float:
        """Return when the next fault after an instant begins that concerns a counter."""
        begins = [
            each.begin
            for each in self._by_datacenter.get(place.datacenter, ())
            if each.begin > instant and each.concerns(place)
        ]
        return min(begins, default=inf)

    def may_be_lost(self, place: Place, begin: float, end: float) -> bool:
        """Return whether a crash may have lost what a counter did between two instants.

        A member may decide a check and crash long before the answer arrives.
        """
        return any(loss.begin <= end and begin <= loss.end for loss in self._losses_of(place))

    def _losses_of(self, place: Place) -> Iterator[Loss]:
        """Yield the losses that concern a counter."""
        for loss in self._losses:
            is_here = loss.datacenter == place.datacenter
            if is_here and not loss.hosts.isdisjoint(place.hosts[: loss.reach]):
                yield loss

    def replicated_at(self, place: Place, answer: Answered) -> float:
        """Return when the standby certainly counts the units of a check.

        The owner may have been suspended before it replicated them. Minus infinity if it was not.
        """
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
