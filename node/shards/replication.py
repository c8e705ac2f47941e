"""Replication of changed counters to the standby of each shard, or to two standbys, see
`second_standbys`.

Decides when to send, to which member, and how much at a time. A round sends all counters that have
changed, in steps between which other tasks run. While a standby has not acknowledged several
frames, changes accumulate and are sent after its next acknowledgement. So a slow standby costs
little memory, and `backlog` and `age_ms` show that it is slow. When more keys wait than a node
stores, the oldest ones are dropped and counted.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress

from hashring import SHARDS, NodeId, Ring, group_by, shard_of
from node.context.containment import Containment
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from node.shards.ownership.second_standbys import SecondStandbys, standbys_of
from node.shards.transfers.shard_sender import ShardSender
from node.shards.transfers.unacknowledged_transfers import BYTES_PER_PART, size_of_remote
from ringfence import runtime
from ringfence.limiter import Engine
from ringfence.peering.link import Link
from ringfence.wire import Copy, Done

__all__ = ["INTERVAL", "Replication"]

INTERVAL = 0.05
"""Seconds from the first change to a round: half of the time whose counts a crash may lose. The
other half is for the wait for a busy event loop and for the way to the standby."""
_MAX_AGE_NS = 100_000_000
"""Time whose counts a crash may lose."""
_KEYS_PER_STEP = 2000
"""Most changed keys that one step sends."""
_BYTES_PER_STEP = 12_000
"""Bytes of counters that one step should send. Without compiled tables, it takes up to 2 ms when
these are logs of hits."""
_ROUTED_KEYS_PER_STEP = 300
"""Most changed keys that one step sends while each key is routed on its own, which takes some
microseconds."""
_FRAMES_PER_STANDBY = 256
"""Most unacknowledged frames of a standby; they bound the memory of its connection."""
_FRAMES_OF_OTHER_ROUNDS = 4
"""Unacknowledged frames from which on a standby gets none in the next round."""
_SLICE = 2000
_MOST_MARKED = 20_000
"""Keys that wait to be sent, above which no further keys are marked for a new standby. A node may
have millions of keys, and a change of a counter must not wait behind all of them."""
_ALL = range(SHARDS)


class Replication:
    """Sends changed counters of the shards that this node holds to their standbys."""

    def __init__(
        self,
        me: NodeId,
        ownership: ShardOwnership,
        sender: ShardSender,
        engine: Engine,
        counters: Counters,
        link_to: Callable[[NodeId], Link | None],
        clock: Callable[[], int],
        containment: Containment,
        max_keys: int,
    ) -> None:
        """`max_keys` is the highest number of keys that may wait until they are sent."""
        self._me = me
        self._ownership = ownership
        self._changed = ownership.changed
        # A replica must drain and expire by the limit that its owner applies.
        engine.on_conversion.append(self._changed.add)
        self._sender = sender
        self._engine = engine
        self._counters = counters
        self._link_to, self._clock, self._containment = link_to, clock, containment
        self._max_keys = max_keys
        self._ring, self._second = Ring.of(()), SecondStandbys(me, ownership, max_keys)
        self._in_flight: dict[NodeId, dict[int, int]] = {}
        """Unacknowledged frames by standby and number, each with the instant of its oldest
        change."""
        self._keys_per_step = 500
        """Changed keys that the next step sends, by the size of those in the last frame."""
        self._changed_since: int | None = None
        """Instant of the oldest change that was not sent; None if all changes were sent."""
        self._held_back: set[NodeId] = set()
        """Standbys whose keys wait for an acknowledgement."""
        self._has_room = runtime.Event()
        """Set when one of these standbys can get frames again."""
        self._ring_changes: list[tuple[Ring, Ring]] = []
        self._restarted_members: dict[NodeId, None] = {}
        """Members that were restarted, and have lost their replicas."""
        self._wake = runtime.Event()
        self._round_ended = runtime.Event()

    def on_ring_change(self, old: Ring, new: Ring, check_ring: Ring) -> None:
        """Follow a change of the ring; a new standby needs all counters of its shards.

        Checks are sent by `check_ring`, which does not contain joining members.
        """
        self._ring = new
        self._ring_changes.append((old, new))
        self._changed.update(self._second.on_ring_change(new, check_ring))
        self._wake.set()

    def on_member_restarted(self, name: NodeId) -> None:
        """Send all counters to a standby that was restarted.

        The ring is unchanged when the restart was faster than failure detection.
        """
        self._restarted_members[name] = None
        self._wake.set()

    async def run(self) -> None:
        """Send changed counters after `INTERVAL`, until cancelled."""
        async with runtime.open_task_group() as nursery:
            contained = self._containment.supervise
            nursery.start_soon(contained, "replication", self._mark_for_new_standbys)
            nursery.start_soon(contained, "replication", self._send_rounds)

    async def _send_rounds(self) -> None:
        while True:
            if not self._second.owed:
                await self._changed.wait()  # An idle node does not wake.
            if self._changed_since is None:
                self._changed_since = self._clock()
            with runtime.move_on_after(INTERVAL):  # Changes of one interval leave together.
                await self._has_room.wait()
            for _ in self.send_changes():
                await runtime.checkpoint()
            self._round_ended.set()
            self._round_ended = runtime.Event()

    @property
    def backlog(self) -> int:
        """Return the number of changed keys that wait until they are sent to a standby."""
        return len(self._changed.keys) + self._second.backlog

    @property
    def age_ms(self) -> int:
        """Return the milliseconds since the oldest change that its standby has not acknowledged."""
        since = [at for frames in self._in_flight.values() for at in frames.values()]
        since += [owed.since for owed in self._second.owed.values()]
        if self._changed_since is not None and self._changed.keys:
            since.append(self._changed_since)
        return (self._clock() - min(since)) // 1_000_000 if since else 0

    def send_changes(self) -> Iterator[None]:
        """Send the counters that have changed since the last round, a part of them at each
        step."""
        if not self._has_standbys:
            self._drop(len(self._changed.keys))
            return
        excess = len(self._changed.keys) - self._max_keys
        self._counters.add("keys_not_copied", self._drop(excess))
        self._held_back.clear()
        self._has_room = runtime.Event()
        now = self._clock()
        since, self._changed_since = self._changed_since or now, now
        in_flight = self._in_flight.items()
        busy = {standby for standby, frames in in_flight if len(frames) >= _FRAMES_OF_OTHER_ROUNDS}
        left = len(self._changed.keys)
        while left > 0 and self._has_standbys:  # Members may leave between two steps.
            most = min(left, self._keys_per_step)
            if self._has_special_shards:
                most = min(most, _ROUTED_KEYS_PER_STEP)
            self._send_step(self._changed.take(most), busy, since)
            left -= most
            yield
        for standby, owed in [*self._second.owed.items()]:
            left = len(owed.keys)  # A lost link returns keys at once.
            while left > 0 and self._link_to(standby) and not self._is_busy(standby, busy):
                most = min(left, self._keys_per_step)
                self._send_owed(standby, most, owed.since)
                left -= most
                yield
        if not self._changed.keys:
            self._changed_since = None

    def _drop(self, excess: int) -> int:
        """Send nothing about the keys that have waited longest; return their number."""
        if excess <= 0:
            return 0
        dropped = self._changed.take(excess)
        self._sender.index.add(dropped)
        return len(dropped)

    def _hold_back(self, standby: NodeId, keys: Iterable[bytes], since: int) -> None:
        """Send keys in a later round, only to this standby if they may have another one.

        `since` is the instant of their oldest change.
        """
        owed = self._second.of_two(standby, keys, self._ring)
        if owed:
            self._owe(standby, owed, since)
        others = [key for key in keys if key not in owed]
        if others:
            self._changed.update(others)
            self._changed_since = min(since, self._changed_since or since)

    def _owe(self, standby: NodeId, keys: Iterable[bytes], since: int) -> None:
        self._sender.index.add([*keys])  # They are no changed keys any more.
        self._counters.add("keys_not_copied", self._second.owe(standby, keys, since))
        self._changed.notify()

    def _send_owed(self, standby: NodeId, most: int, since: int) -> None:
        """Send up to `most` of the keys that wait only for this standby. Those that it must not get
        now continue to wait."""
        link = self._link_to(standby)
        keys = self._second.take(standby, most)
        safe = {key: None for key in keys if self._second.is_safe(standby, key)}
        for key in [key for key in keys if key not in safe]:
            shard = shard_of(key)
            if shard in self._ownership.covers:  # It has only one standby now.
                self._changed.add(key)
            elif self._ownership.held[shard]:
                self._owe(standby, [key], since)
        if safe and link is not None:
            self._send(standby, link, [*safe], self._clock(), since)

    def _send_step(self, keys: Sequence[bytes], busy: Collection[NodeId], since: int) -> None:
        """Send changed keys to their standbys, except to busy ones, which get them later."""
        by_standby: dict[NodeId, list[bytes]] = {}
        waiting: dict[NodeId, list[bytes]] = {}
        standbys = self._ring.standby_by_shard
        groups = group_by(keys, standbys, self._ownership.held) if standbys else {}
        for standby in sorted(groups):
            if self._has_special_shards or standby == self._me:
                for key in groups[standby]:
                    self._route(key, busy, by_standby, waiting)
            elif self._is_busy(standby, busy):
                waiting.setdefault(standby, []).extend(groups[standby])
            else:
                by_standby.setdefault(standby, []).extend(groups[standby])
        for standby, safe in self._second.groups(keys):
            found = waiting if self._is_busy(standby, busy) else by_standby
            found.setdefault(standby, []).extend(safe)
        for standby, of_standby in waiting.items():
            self._hold_back(standby, of_standby, since)
        now = self._clock()
        for standby, of_standby in by_standby.items():
            link = self._link_to(standby)
            if link is None:
                self._hold_back(standby, of_standby, since)
            else:
                self._send(standby, link, of_standby, now, since)

    @property
    def _has_standbys(self) -> bool:
        """Whether any shard has a standby. While this node leaves a ring of two members, the other
        one is only a present standby."""
        return bool(self._ring.standby_by_shard or self._second)

    @property
    def _has_special_shards(self) -> bool:
        """Whether the counters of some shards must not be sent to the standby of the ring, which
        may have newer ones."""
        return bool(self._ownership.covers or self._ownership.unasked.to_ask)

    def _route(
        self,
        key: bytes,
        busy: Collection[NodeId],
        by_standby: dict[NodeId, list[bytes]],
        waiting: dict[NodeId, list[bytes]],
    ) -> None:
        """Add a changed key to those of its standby, or to the waiting ones."""
        shard = shard_of(key)
        standby = self._ring.standby(shard)
        if standby == self._me:
            # This node covers the shard or will transfer it: replicate to its owner.
            standby = self._ring.owner(shard)
        if standby is None or standby == self._me:
            return
        cover = self._ownership.covers.get(shard)
        if cover is not None and standby == cover.owner:
            self._sender.index.add([key])
            cover.add_unsent(key, self._engine.has)
            return  # The owner may have newer counters; this node requests them separately.
        may_overwrite = self._ownership.unasked.is_to_ask(standby, shard)
        may_overwrite = may_overwrite or (
            cover is not None
            and (
                standby in cover.to_ask
                # The next owner of the shard may have the replica that this node lacks.
                or (standby == self._ring.owner(shard) and self._ownership.is_blind(shard))
            )
        )
        if may_overwrite or self._is_busy(standby, busy):
            waiting.setdefault(standby, []).append(key)
        else:
            by_standby.setdefault(standby, []).append(key)

    def _is_busy(self, standby: NodeId, busy: Collection[NodeId]) -> bool:
        frames = self._in_flight.get(standby, ())
        is_busy = standby in busy or len(frames) >= _FRAMES_PER_STANDBY
        if is_busy:
            self._held_back.add(standby)
        return is_busy

    def _send(
        self, standby: NodeId, link: Link, keys: Sequence[bytes], now: int, since: int
    ) -> None:
        self._sender.index.add(keys)
        counts = self._ownership.snapshot(keys, now)
        size = len(counts.rows) + size_of_remote(counts.remote_counts)
        if len(keys) > 1 and size > BYTES_PER_PART:
            half = len(keys) // 2
            self._send(standby, link, keys[:half], now, since)
            self._send(standby, link, keys[half:], now, since)
            return
        self._keys_per_step = min(_KEYS_PER_STEP, max(1, _BYTES_PER_STEP * len(keys) // size))
        frames = self._in_flight.setdefault(standby, {})
        number = next(reversed(frames), 0) + 1
        frames[number] = since

        def on_reply(reply: object) -> None:
            del frames[number]
            if not isinstance(reply, Done):
                self._hold_back(standby, keys, since)
                self._counters.add("copies_lost")
                return
            if self._clock() - since > _MAX_AGE_NS:
                self._counters.add("copies_late")
            has_room = len(frames) < _FRAMES_OF_OTHER_ROUNDS
            if has_room and standby in self._held_back:
                self._has_room.set()

        origins, which = self._origins_of(keys)
        link.call(lambda seq: Copy(seq, counts, origins, which), on_reply)
        self._counters.add("copies_sent")
        self._counters.add("keys_copied", len(keys))

    def _origins_of(self, keys: Sequence[bytes]) -> tuple[list[tuple[int, ...]], list[int]]:
        """Return the origins of the keys' counters, and the index of each key's, if they differ."""
        of_keys = self._ownership.origins.of_keys(keys)
        if of_keys.count(of_keys[0]) == len(keys):  # Nearly always; it compares the same object.
            return of_keys[:1], []
        indexes = {each: index for index, each in enumerate(dict.fromkeys(of_keys))}
        return [*indexes], [indexes[each] for each in of_keys]

    async def _mark_for_new_standbys(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = runtime.Event()
            restarted, self._restarted_members = self._restarted_members, {}
            changed = self.shards_with_new_standby(restarted)
            second = self._second.shards_with_new_one(restarted)
            for some in self._engine.key_slices(_SLICE) if changed or second else ():
                while self.backlog > _MOST_MARKED:
                    await self._round_ended.wait()
                self.mark(some, changed)
                marked = [key for key in some if shard_of(key) in second]
                for standby, keys in self._second.groups(marked):
                    self._owe(standby, keys, self._clock())
                await runtime.checkpoint()

    def shards_with_new_standby(self, restarted_members: Collection[NodeId] = ()) -> set[int]:
        """Return the shards of this node whose standby has changed since the last call, or was
        restarted."""
        ring_changes, self._ring_changes = self._ring_changes, []
        changed: set[int] = set()
        held = list(compress(_ALL, self._ownership.held))  # In a large cluster, few shards.
        for old, new in ring_changes:
            before, after = standbys_of(old), standbys_of(new)
            changed.update([s for s in held if after[s] not in (before[s], None)])
        if restarted_members:
            now = standbys_of(self._ring)
            changed.update([shard for shard in held if now[shard] in restarted_members])
        return changed

    def mark(self, keys: Sequence[bytes], shards: Collection[int]) -> None:
        """Mark those of `keys` that belong to the given shards, so that their counters are sent to
        the standby. A second standby has them already."""
        marked = [key for key in keys if shard_of(key) in shards]
        standbys = self._ring.standby_by_shard if self._second else ()
        groups = group_by(marked, standbys, self._ownership.held) if standbys else {}
        now = self._clock()
        for standby, of_standby in groups.items():
            self._hold_back(standby, of_standby, now)
        if not groups:
            self._changed.update(marked)
