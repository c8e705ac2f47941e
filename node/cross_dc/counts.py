"""Counts of global rules, which apply to all data centers together: sending and merging them.

Decides when counts are sent and to which data centers. `gossip.cross_dc.count_dissemination`
chooses the keys. Each data center is the only writer of its own counts. So a message that is
duplicated, late or out of order has no effect.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from random import Random

from msgspec.structs import replace

from gossip.cross_dc.count_dissemination import CountDissemination, DueCounts, KeyCounts
from hashring import NodeId, Ring, View, shard_of
from node.context.containment import Containment
from node.cross_dc.global_keys import GlobalKeys
from node.cross_dc.recovery import CountRecovery
from node.cross_dc.split import largest_shares, share_of
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from ringfence import runtime
from ringfence.limiter import Engine, EngineRule, Limit
from ringfence.peering.link import Link
from ringfence.rules import RuleSet
from ringfence.rules.descriptor_tree import place as place_of
from ringfence.wire import (
    Digest,
    DigestMismatch,
    Done,
    ErrorCode,
    RecoverCounts,
    RecoverCountsReply,
    Refused,
    WindowCounts,
)

__all__ = ["INTERVAL", "CrossDcCounts"]

logger = logging.getLogger("ringfence.node")

INTERVAL = 0.2
"""Seconds between two rounds while there are counts to send."""
_DIGEST_EVERY = 10.0
_KEYS_PER_ROUND = 4000
_KEYS_PER_MESSAGE = 100
"""The receiver merges a message in one step."""
_SHARDS_PER_DIGEST = 1000
_STALENESS_MS = (10, 50, 100, 200, 300, 500, 1000, 2000, 5000, 10_000)  # Upper bounds, in ms.
_HOME_PATIENCE = 10.0
"""Seconds after which a home without members is reported."""
_MOST_MARKED = 20_000
"""Keys to send to a data center above which no further ones are marked for a new one."""
_LAST_PAUSE = 0.05
"""Seconds between two rounds of a node that stops."""


class CrossDcCounts:
    """Counts of rules that apply across data centers, at one node: of this data center and of the
    others."""

    _flushing = 0
    """Rounds in progress, which have taken keys out of the queues."""
    _staleness_sum_ms = 0
    _stalest_ms = 0

    def __init__(
        self,
        datacenter: str,
        engine: Engine,
        ownership: ShardOwnership,
        counters: Counters,
        link_to: Callable[[NodeId], Link | None],
        keys: GlobalKeys,
        clock: Callable[[], int],
        uptime: Callable[[], int],
        random: Random,
        containment: Containment,
    ) -> None:
        """`clock` returns the time from which window numbers are computed. `uptime` is monotonic,
        in ns, and measures how long counts wait to be sent."""
        self._datacenter = datacenter
        self._engine = engine
        self._ownership = ownership
        self._counters = counters
        self._link_to = link_to
        self._keys = keys
        self._clock = clock
        self._uptime = uptime
        self._random = random
        self._containment = containment
        self._view = self._routed = View.of(())
        self._split_datacenters = {datacenter}
        """Data centers that a split limit is divided among."""
        self._rules = RuleSet()
        self._has_changed = runtime.Event()
        """Set when the rules or the members have changed."""
        self._has_others = runtime.Event()
        """Set once another data center has a member."""
        self._unmarked: dict[str, None] = {}
        """Data centers that must get the counts of all keys."""
        self._has_unmarked = runtime.Event()
        self._in_flight: set[NodeId] = set()
        self._staleness: Counter[int] = Counter()
        self._recovery = CountRecovery(engine, ownership, link_to, clock, keys.limit_of, keys.lost)

    # -- rules and members ---------------------------------------------------------------------

    def set_rules(self, rules: RuleSet) -> None:
        """Use this rule set from now on."""
        self._rules = rules
        self._has_changed.set()
        if self._keys.set_rules(rules):  # Their keys may have counts of another scope.
            self._send_all_keys_to(self._keys.to_send)
        self._engine.set_rules(self._engine_rules())

    def set_view(self, routed: View, view: View, left: Collection[str] = ()) -> None:
        """Apply a change of the cluster's members; send all counts again to new owners in other
        data centers.

        Checks are sent to members of `routed`. Counts are sent to members of `view`, which should
        hold the counters. `left` are data centers whose members have all left voluntarily. Only
        they lose their share of a split limit, because an unreachable data center still admits its
        share.
        """
        old, self._view, self._routed = self._view, view, routed
        self._has_changed.set()
        sharers = {*self._split_datacenters, *view.datacenters} - set(left) | {self._datacenter}
        if sharers != self._split_datacenters:
            self._split_datacenters = sharers
            self._engine.set_rules(self._engine_rules())
        now = self._uptime()
        others = [name for name in view.datacenters if name != self._datacenter]
        to_send, self._keys.others = self._keys.to_send, others
        self._send_all_keys_to([name for name in others if name not in to_send])
        if others:
            self._has_others.set()
        for name in others:
            dissemination = self._keys.counts_for(name)
            if old.ring(name) != view.ring(name):
                dissemination.resend(None, now)
        for name in [name for name in to_send if name not in view.datacenters]:
            # The data center may return; the counts that it lacks are kept for that case.
            to_send[name].resend(None, now)
        self._keys.rounds.add_work()

    def elsewhere(self) -> dict[bytes, Ring]:
        """Return, for each rule that another data center decides, the hash ring of that data
        center."""
        return {
            rule.id.to_bytes(8, "big"): self._routed.ring(rule.home)
            for rule in self._rules.rules()
            if rule.scope == "home" and rule.home != self._datacenter
        }

    def split_rules(self) -> dict[bytes, Limit]:
        """Return the largest share of each divided limit, by the id of the rule."""
        return largest_shares(self._rules.rules(), sorted(self._split_datacenters))

    def other_rings(self) -> dict[str, Ring]:
        """Return the hash rings of the other data centers, without members that are joining."""
        routed = self._routed
        others = [name for name in routed.datacenters if name != self._datacenter]
        return {name: routed.ring(name) for name in others}

    def _engine_rules(self) -> dict[int, EngineRule]:
        return {
            rule.id: EngineRule(
                share_of(rule.limit, self._datacenter, sorted(self._split_datacenters))
                if rule.scope == "split"
                else rule.limit,
                denies_group=not (rule.shadow or rule.quota),
                is_shared=rule.scope == "global",
            )
            for rule in self._rules.rules()
            if rule.limit is not None
        }

    # -- sending -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send counts periodically, and report homes without members, until cancelled."""
        async with runtime.open_task_group() as nursery:
            for task in (self._send_rounds, self._mark_for_new_datacenters, self._watch_homes):
                nursery.start_soon(self._containment.supervise, "cross_dc", task)

    async def _watch_homes(self) -> None:
        """Log a warning when the home of a rule has had no member for a while."""
        reported: set[str] = set()
        while True:
            await self._has_changed.wait()
            # The members of a cluster start one by one, so a home may get its first one later.
            await runtime.sleep(_HOME_PATIENCE)
            self._has_changed = runtime.Event()
            known = {*self._routed.datacenters, self._datacenter}
            homes = {rule.home: rule for rule in self._rules.rules() if rule.scope == "home"}
            missing = homes.keys() - known
            for home in sorted(missing - reported):
                logger.warning(
                    "no member is in data center %r, which is the home of rules such as %s; their "
                    "on_failure decides until a member joins there",
                    *(home, place_of(homes[home].domain, homes[home].path)),
                )
            reported = missing

    def _send_all_keys_to(self, names: Iterable[str]) -> None:
        self._unmarked.update(dict.fromkeys(names))
        if self._unmarked:
            self._has_unmarked.set()

    async def _mark_for_new_datacenters(self) -> None:
        while True:
            await self._has_unmarked.wait()
            self._has_unmarked = runtime.Event()
            names, self._unmarked = [*self._unmarked], {}
            for _ in self._keys.mark_all(names):
                await runtime.checkpoint()
                while self._have_many_to_send(names):
                    await runtime.sleep(INTERVAL)  # Each round sends a part of them.

    def _have_many_to_send(self, names: Collection[str]) -> bool:
        """Return whether one of these data centers must get many counts first.

        A data center without members gets no counts, so nothing waits for it.
        """
        to_send = [self._keys.to_send[name] for name in self._keys.others if name in names]
        return any([len(each) > _MOST_MARKED for each in to_send])

    async def _send_rounds(self) -> None:
        await self._has_others.wait()
        digest_at = runtime.current_time() + _DIGEST_EVERY
        while True:
            if self._keys.has_work:
                self._keys.rounds.add_work()
            await self._keys.rounds.wait(0, digest_at - runtime.current_time())
            spread = 0.9 + 0.2 * self._random.random()  # So that nodes send at different times.
            # Other data centers get no refunds, so counts wait for the refunds of their checks.
            await runtime.sleep(INTERVAL * spread)  # The interval between two messages.
            # Digests are sent between two rounds, when most sent counts are acknowledged. A count
            # that arrives while its digest is on the way would be sent again.
            if runtime.current_time() >= digest_at:
                digest_at = runtime.current_time() + _DIGEST_EVERY
                for _ in self._keys.forget_expired():
                    await runtime.checkpoint()
                for _ in self.send_digests():
                    await runtime.checkpoint()
            for _ in self.flush():
                await runtime.checkpoint()

    async def send_all(self, patience: float) -> bool:
        """Send all waiting counts, because this node is the last one of its data center to stop;
        return whether all were acknowledged within `patience` seconds."""
        to_send = self._keys.to_send
        with runtime.move_on_after(patience) as timer:
            while (
                self._flushing
                or self._in_flight
                or any(len(to_send[name]) for name in self._keys.others)
            ):
                for _ in self.flush(are_all_due=True):
                    await runtime.checkpoint()
                # The answers to this round arrive meanwhile. Refused counts are sent again.
                await runtime.sleep(_LAST_PAUSE)
        return not timer.cancelled_caught

    def flush(self, *, are_all_due: bool = False) -> Iterator[None]:
        """Send changed counts to other data centers, some at each step, and request lost counts
        from them.

        A count that has changed little waits for further changes, unless `are_all_due` is set.
        """
        others = {name: self._view.ring(name) for name in self._keys.others}
        self._recovery.ask(self._view.ring(self._datacenter), others)
        for name, dissemination in self._keys.to_send.items():
            if name not in others:
                dissemination.drop_expired(
                    lambda keys: self._engine.local_counts(keys, self._clock())
                )
        for name, ring in others.items():
            dissemination = self._keys.to_send[name]
            if not len(dissemination):
                continue
            found: list[DueCounts] = []
            now, most = self._uptime(), 0
            self._flushing += 1
            try:
                for some in dissemination.find_due(self._read_counts, now, are_all_due=are_all_due):
                    found += self._sure_counts(dissemination, ring, some)
                    yield
                most = _KEYS_PER_ROUND if self._view.ring(name) == ring else 0
            finally:  # Without a further step, or with new owners, all keys are queued again.
                self._flushing -= 1
                chosen = dissemination.nearest(found, most)
            by_owner: dict[NodeId, list[DueCounts]] = {}
            for due in chosen:
                by_owner.setdefault(ring.owner(shard_of(due.key)), []).append(due)
            for owner, rows in by_owner.items():
                self._send_counts(dissemination, owner, rows)

    def _sure_counts(
        self, dissemination: CountDissemination, ring: Ring, some: Sequence[DueCounts]
    ) -> Iterator[DueCounts]:
        """Yield the counts that can be sent now, without units that may be counted twice.

        Other data centers never reduce a count, so it is not sent while it may be too high.
        """
        clock = self._clock()
        for due in some:
            key = due.key
            shard = shard_of(key)
            cover = self._ownership.covers.get(shard)
            is_counted_twice = cover is not None and cover.is_owner_counting(clock)
            if ring.owner(shard) in self._in_flight or is_counted_twice:
                dissemination.on_lost(key, due.since)  # It is sent later, with newer changes.
                continue
            extra = 0 if cover is None else cover.possible_duplicates(key, clock)
            if not extra:
                yield due
                continue
            # The other units are sent later, if no merge has removed them.
            dissemination.mark_changed(key, self._uptime())
            sure = _reduced(due.cells, extra)
            if sure:
                yield replace(due, cells=sure)

    def _send_counts(
        self, dissemination: CountDissemination, owner: NodeId, rows: Sequence[DueCounts]
    ) -> None:
        # Another task may have sent counts to this owner between two steps.
        link = None if owner in self._in_flight else self._link_to(owner)
        if link is None:
            for row in rows:
                dissemination.on_lost(row.key, row.since)
            return
        self._in_flight.add(owner)
        parts = [rows[i : i + _KEYS_PER_MESSAGE] for i in range(0, len(rows), _KEYS_PER_MESSAGE)]
        waiting = len(parts)
        for part in parts:

            def on_reply(reply: object, part: Sequence[DueCounts] = part) -> None:
                nonlocal waiting
                waiting -= 1
                if not waiting:
                    self._in_flight.discard(owner)
                if isinstance(reply, Done):
                    self._on_acknowledged(dissemination, part)
                else:
                    self._counters.add("cells_lost", len(part))
                    self._keys.rounds.add_work()
                    for row in part:
                        dissemination.on_lost(row.key, row.since)

            keys, cells = [row.key for row in part], [row.cells for row in part]
            self._counters.add("cells_sent", sum(len(row) // 2 for row in cells))
            link.call(
                lambda seq, k=keys, c=cells: WindowCounts(seq, self._datacenter, k, c),  # type: ignore[misc]
                on_reply,
            )

    def _on_acknowledged(
        self, dissemination: CountDissemination, rows: Sequence[DueCounts]
    ) -> None:
        now = self._uptime()
        for row in rows:
            dissemination.on_acknowledged(row.key, row.cells)
            age_ms = (now - row.since) // 1_000_000
            self._staleness[next((b for b in _STALENESS_MS if age_ms <= b), 0)] += 1
            self._staleness_sum_ms += age_ms
            self._stalest_ms = max(self._stalest_ms, age_ms)

    def _read_counts(self, keys: Sequence[bytes]) -> list[KeyCounts]:
        now = self._clock()
        local = self._engine.local_counts(keys, now)
        return [
            KeyCounts(cells, self._engine.used(key, now), self._engine.ceiling(key))
            for key, cells in zip(keys, local, strict=True)
        ]

    # -- receiving -------------------------------------------------------------------------------

    def receive_counts(self, sender: str, message: WindowCounts) -> Done | Refused:
        """Merge counts that the other data center `sender` has sent into this node's counters."""
        if message.writer != sender or sender == self._datacenter:
            self._counters.add("cells_refused", len(message.keys))
            return _foreign(message.seq, message.writer, sender)
        refused = self._engine.merge_remote(
            message.writer, message.keys, message.cells, self._clock()
        )
        self._counters.add("cells_received", sum(len(row) // 2 for row in message.cells))
        self._counters.add("cells_refused", refused)
        # The standby needs the counts, too: a bucket drains them from their first arrival on.
        self._ownership.changed.update(message.keys)
        for key, cells in zip(message.keys, message.cells, strict=True):
            if cells:
                self._keys.on_received(message.writer, key, cells)
        return Done(message.seq)

    def receive_recovery_request(
        self, sender: str, message: RecoverCounts
    ) -> RecoverCountsReply | Refused:
        """Answer a data center that requests the counts that it lost, and send it this data
        center's counts again."""
        if not sender:
            text = "counts are recalled by a node whose data center is not known here yet"
            return Refused(message.seq, ErrorCode.NOT_PERMITTED, text)
        if sender == self._datacenter:
            self._keys.rounds.add_work()
            return self._recovery.take_over_request(message)
        if sender in self._keys.to_send:
            self._keys.to_send[sender].resend(message.shards, self._uptime())
            self._keys.rounds.add_work()
        return self._recovery.answer(sender, message, self._keys.received_from(sender))

    def send_digests(self) -> Iterator[None]:
        """Send digests of the acknowledged counts to their owners in other data centers, at most
        one message at each step."""
        for name in self._keys.others:
            dissemination = self._keys.to_send[name]
            ring = self._view.ring(name)
            by_owner: dict[NodeId, list[int]] = {}
            for shard in [*dissemination.acknowledged.sums]:
                shards = by_owner.setdefault(ring.owner(shard), [])
                shards.append(shard)
                if len(shards) == _SHARDS_PER_DIGEST:
                    self._send_digest(dissemination, ring.owner(shard), shards)
                    del by_owner[ring.owner(shard)]
                    yield
            for owner, shards in by_owner.items():
                self._send_digest(dissemination, owner, shards)
                yield

    def _send_digest(
        self, dissemination: CountDissemination, owner: NodeId, some: list[int]
    ) -> None:
        link, known = self._link_to(owner), dissemination.acknowledged.sums
        shards = sorted([shard for shard in some if shard in known])  # Some may be sent again.
        if link is None or not shards:
            return
        sums = [known[shard] for shard in shards]

        def on_reply(reply: object) -> None:
            if isinstance(reply, DigestMismatch) and reply.shards:
                self._counters.add("digests_differed", len(reply.shards))
                dissemination.resend(reply.shards, self._uptime())
                self._keys.rounds.add_work()

        self._counters.add("digests_sent")
        link.call(lambda seq: Digest(seq, self._datacenter, shards, sums), on_reply)

    def receive_digest(self, sender: str, message: Digest) -> DigestMismatch | Refused:
        """Return the shards for which the digests of another data center differ from this node's
        counts."""
        if message.writer != sender or sender == self._datacenter:
            return _foreign(message.seq, message.writer, sender)
        known = self._keys.received_from(message.writer).sums
        differing = [
            shard
            for shard, total in zip(message.shards, message.sums, strict=True)
            if known.get(shard, 0) != total
        ]
        return DigestMismatch(message.seq, differing)

    def staleness(self) -> tuple[list[tuple[float, int]], float]:
        """Return a cumulative histogram, in seconds, of the ages of counts when they were
        acknowledged.

        The result has pairs of an upper bound and the number of counts up to that age, and the sum
        of all ages.
        """
        rows: list[tuple[float, int]] = []
        count = 0
        for bound in (*_STALENESS_MS, 0):
            count += self._staleness[bound]
            rows.append((bound / 1000 if bound else inf, count))
        return rows, self._staleness_sum_ms / 1000

    def stats(self) -> dict[str, int]:
        """Return the ages of counts when they were acknowledged, and the number of waiting
        counts."""
        found = {
            f"staleness_ms_le_{bound or 'inf'}": count for bound, count in self._staleness.items()
        }
        waiting = sum(map(len, self._keys.to_send.values()))
        return found | {"staleness_ms_worst": self._stalest_ms, "cells_waiting": waiting}


def _reduced(cells: Sequence[int], units: int) -> list[int]:
    """Return counts without `units` in each window; a window without other units is omitted."""
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return [n for number, count in pairs if count > units for n in (number, count - units)]


def _foreign(seq: int, writer: str, sender: str) -> Refused:
    return Refused(
        seq,
        ErrorCode.NOT_PERMITTED,
        f"counts of data center {writer!r} came from a node in {sender!r}; only its own may tell",
    )
