"""Which shards this node counts, and what happens to their counters when that changes.

A node *holds* a shard or it does not, whatever any ring says, and only a holder decides. Shards
come by being given, or are taken over when nobody is left to give them; then a tally is kept of
what is admitted from there on, so that an owner that was only cut off can charge it later. Whom to
ask for a shard is `handoff`'s affair. Nothing here waits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, count

from gossip import Record, Status
from hashring import SHARDS, NodeId, shard_of
from node.metrics.counters import Counters
from node.requests.client_leases import Lender
from node.requests.deduplication.decided_checks import DecidedChecks
from node.requests.sessions.session import Session
from node.shards.fallback_log import FallbackLog
from node.shards.outgoing_transfers import (
    BYTES_PER_PART,
    NOTHING,
    Given,
    OutgoingTransfers,
    Reply,
    SentCopies,
    SentCopy,
    add_decided,
    append_row,
    cut,
)
from node.shards.replicas import Replicas
from ringfence.limiter import CHARGED_CODES, Code, Engine, Limit, Outcomes, Snapshot
from ringfence.wire import LEASE, Batch, DecidedCheck, Op, Pull, Pulled, ShardGroup

__all__ = ["ShardOwnership"]

_KEYS_PER_ANSWER = 4000
"""Keys in an answer beyond which no further shard is added; the receiver asks again for those."""
_OWN_KEPT_NS = 15_000_000_000
"""How long after a start somebody may come with a shard that was given away before it."""
_TAKING_NS = 1_000_000_000
"""How long the taker of a gift may need to say that it has it, before it is given to another one:
two who have it would both pass on what is news in it."""
_MOST_FRAMES = 256
"""Frames whose keys may wait to be marked as dirty."""
_NO_LIMIT = Limit.of_ns(0, 1)
_LAST_CHARGED = Code.OVER_SOFT.value


@dataclass(frozen=True, slots=True)
class _Taken:
    """A shard that was taken over without its owner's doing."""

    owner: NodeId
    tally: FallbackLog = field(default_factory=FallbackLog)
    """What was admitted since."""
    is_base_whole: bool = False
    """Whether the counters that we went on from were all that the owner ever had from us."""
    came_at: int = 0
    """When it came here, in ns."""
    has_base: bool = True
    """Whether there were any counters to go on from."""
    is_from_before: bool = False
    """Whether the owner was started again since."""
    since: int = 0
    """Instant in ns from which on the tally holds what was admitted."""
    unasked: tuple[NodeId, ...] = ()
    """Who may have the counters to go on from, and has not said so: never the owner."""
    base_of: str = ""
    """Member whose counters this node continued from, when they were a replica."""


class ShardOwnership:
    """The shards of one node and their counters."""

    def __init__(
        self,
        me: NodeId,
        engine: Engine,
        counters: Counters,
        period_of: Callable[[bytes], int],
        came: Callable[[Sequence[bytes]], None],
        begun: Callable[[Sequence[int]], None],
        *,
        max_keys: int,
        max_bytes: int | None = None,
        first_gift: int,
        decided_checks: DecidedChecks | None = None,
        least_parts: int = 1,
    ) -> None:
        """`period_of` tells the period in ns of the limit that a key is counted by; `came` hears
        of keys that are counted here from now on, `begun` of shards that are so from nothing.

        Transfers are numbered from `first_gift`, which no earlier life of the node may have
        reached. A shard with any counter moves in at least `least_parts` parts: tests raise that.
        """
        if decided_checks is None:
            decided_checks = DecidedChecks(_no_answers)
        self._decided_checks = decided_checks
        """Travels with the shards, so that a repeated check finds its outcome at their holder."""
        self.held = bytearray(SHARDS)
        """1 at the index of each shard that is counted here, else 0."""
        self.copies = Replicas(max_keys, max_bytes)
        self.lender: Lender[Session] | None = None
        """Whoever knows what is lent of the keys counted here."""
        self._dirty: dict[bytes, None] = {}
        self._changed: list[Sequence[bytes]] = []
        """What frames have changed that is not among the dirty keys yet."""
        self._me = me
        self._gifts = count(first_gift)
        self._engine = engine
        self._counters = counters
        self._period_of = period_of
        self._came = came
        self._begun = begun
        self._taken: dict[int, _Taken] = {}
        self._given = OutgoingTransfers()
        self._sent = SentCopies()
        self._least_parts = least_parts
        self._bare: dict[int, dict[bytes, int]] = {}
        """Shards that are counted here since they began from nothing: units regained."""
        self._regained_at = 0
        self._left: set[NodeId] = set()
        """Members that have given their shards away."""
        self._adopted: dict[int, tuple[NodeId, int]] = {}
        """Per shard the gift that came last, and whose it was."""
        self._index: dict[int, set[bytes]] | None = None
        """Keys by shard, while shards are being given away."""

    # -- deciding ------------------------------------------------------------------------------

    def decided(self, batch: Batch, outcomes: Outcomes, now: int) -> None:
        """Note what a batch has changed: for the standby, and for those we stand in for."""
        keys, codes = batch.keys, outcomes.codes
        if batch.op is Op.CHECK and any(codes) and max(codes) > _LAST_CHARGED:
            keys = [k for k, code in zip(keys, codes, strict=True) if code <= _LAST_CHARGED]
        self._changed.append(keys)
        if len(self._changed) >= _MOST_FRAMES:
            self._mark_changed()
        if self._taken:
            self._tally(batch, outcomes, now)

    @property
    def dirty(self) -> dict[bytes, None]:
        """Keys whose state the standby has not got yet."""
        if self._changed:
            self._mark_changed()
        return self._dirty

    def _mark_changed(self) -> None:
        """Many frames at once: that costs less, above all when they name the same keys."""
        self._dirty.update(dict.fromkeys(chain.from_iterable(self._changed)))
        self._changed.clear()

    def touch(self, key: bytes) -> None:
        """Note that a key is to be copied again."""
        self.dirty[key] = None

    def _tally(self, batch: Batch, outcomes: Outcomes, now: int) -> None:
        for at, key in enumerate(batch.keys):
            taken = self._taken.get(shard_of(key))
            if taken is None:
                continue
            tally, cost = taken.tally, batch.costs[at]
            match batch.op:
                case Op.CHECK | Op.CHARGE:
                    if cost and outcomes.codes[at] in CHARGED_CODES:
                        tally.add(key, cost, self._period_at(batch, at), now)
                case Op.REFUND:
                    tally.take_back(key, cost)
                case Op.RESET:
                    tally.forget(key)

    def _period_at(self, batch: Batch, at: int) -> int:
        """Find the period in ns of the limit that a row is counted by."""
        which = batch.which[at] if batch.which else 0
        return batch.limits[which - 1].period_ns if which else self._period_of(batch.keys[at])

    # -- what is held --------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many shards are held."""
        return self.held.count(1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held, and whoever was given something has said that it has it."""
        return not self.count and self._given.are_confirmed

    def taken_from(self, shard: int) -> NodeId | None:
        """Whose counters these were, when the shard was taken over without its doing."""
        taken = self._taken.get(shard)
        return taken.owner if taken else None

    def taken(self) -> list[tuple[int, NodeId, Sequence[NodeId]]]:
        """Return each shard taken over, its owner, and the members to ask for a copy."""
        return [(shard, taken.owner, taken.unasked) for shard, taken in self._taken.items()]

    def taken_over_from(self, owner: NodeId) -> list[int]:
        """The shards that are counted here in the place of `owner`, ascending."""
        return sorted([shard for shard, taken in self._taken.items() if taken.owner == owner])

    def settle_own(self, shard: int, now: int) -> None:
        """Nobody has come with what was ours before we were started: it is simply ours."""
        taken = self._taken.get(shard)
        if taken is not None and now - taken.came_at > _OWN_KEPT_NS:
            self.settle(shard)

    def follow_to(self, shard: int, owner: NodeId) -> None:
        """Whoever had the shard that was taken over has given it to `owner`."""
        taken = self._taken.get(shard)
        if taken is not None:
            self._taken[shard] = replace(taken, owner=owner)

    def go_on_from(self, shard: int, counts: Snapshot, whose: str, now: int) -> None:
        """Whoever had the shard has it no more, but a copy: ours of before, if we began without.

        Or it is a copy of what somebody else counts, to whom only what we admitted is news.
        """
        taken = self._taken.get(shard)
        if taken is None or taken.has_base:
            self.settle(shard)
            return
        self._go_on_with(shard, counts, now, now)
        if whose in ("", self._me) or whose in self._left:
            self.settle(shard)
        else:
            self.follow_to(shard, NodeId(whose))

    def _go_on_with(self, shard: int, counts: Snapshot, at: int, now: int) -> None:
        """Put a copy that came at an instant below what was admitted without it."""
        taken = self._taken[shard]
        self._restore(counts, at)
        self._charge({key: taken.tally.row(key, now) for key in counts.keys}, now)
        self.dirty.update(dict.fromkeys(counts.keys))
        self._came(counts.keys)
        self._taken[shard] = replace(taken, has_base=True, unasked=())

    def unasked(self, shard: int) -> Sequence[NodeId]:
        """Who may have a copy of what was taken over without one: ask before copying to them."""
        taken = self._taken.get(shard)
        return taken.unasked if taken is not None else ()

    def heard_out(self, shard: int, name: NodeId, counts: Snapshot, now: int) -> None:
        """One who was silent when a shard was taken over has told the copy that he has, if any."""
        taken = self._taken.get(shard)
        if taken is None or name not in taken.unasked:
            return
        if counts.keys:
            self._go_on_with(shard, counts, now, now)
        else:
            others = tuple([each for each in taken.unasked if each != name])
            self._taken[shard] = replace(taken, unasked=others)

    def settle(self, shard: int) -> None:
        """Whoever had the shard has nothing of it any more: it is simply ours."""
        self._taken.pop(shard, None)

    def moved_to(self, shard: int, now: int) -> NodeId | None:
        """Who was given the shard just now."""
        return self._given.moved_to(shard, now)

    def gifts(self) -> list[tuple[int, NodeId]]:
        """The shards that were given away without a word that they arrived, and to whom."""
        return self._given.unconfirmed()

    def has_gift(self, shard: int) -> bool:
        """Whether it was given away, and nobody has said that it arrived."""
        given = self._given.get(shard)
        return given is not None and bool(given.parts)

    def given_to(self, shard: int) -> NodeId | None:
        """Who was given the shard last, as long as that is remembered."""
        given = self._given.get(shard)
        return given.to if given else None

    def expire(self, now: int) -> None:
        """Forget what was given away long ago, and copies that have rested."""
        self._given.expire(now)
        self._sent.expire(now)
        self.copies.expire(now)
        if self._regained_at and now - self._regained_at > _OWN_KEPT_NS:
            self._regained_at = 0
            for regained in self._bare.values():
                regained.clear()

    # -- giving --------------------------------------------------------------------------------

    def index(self, keys: Sequence[bytes] | None = None) -> None:
        """Sort keys by shard before many shards are given; None ends the index.

        Call it with slices of `Engine.keys()`; keys that are counted meanwhile follow by `dirty`.
        """
        if keys is None:
            self._index = None
            return
        if self._index is None:
            self._index = {}
        for key in keys:
            self._index.setdefault(shard_of(key), set()).add(key)

    def seen(self, keys: Sequence[bytes]) -> None:
        """Take keys into the index that are dirty no more."""
        if self._index is not None:
            self.index(keys)

    def seen_all(self) -> None:
        """Let no key be dirty any more, for nobody keeps copies."""
        if self._index is not None:
            self.index([*self.dirty])
        self._changed.clear()
        self._dirty.clear()

    @property
    def is_indexed(self) -> bool:
        """Whether shards can be given without a look at every key."""
        return self._index is not None

    def answer(
        self, asker: NodeId, pull: Pull, now: int, stands_by: Callable[[int], bool]
    ) -> Pulled:
        """Give the shards that are asked for, a copy of those that are not here, or nothing.

        A shard that is given is not held any more when this returns; what this node `stands_by`
        for from then on, it keeps a copy of.
        """
        if self._index is not None:
            self.index([*self.dirty])
        reply = Reply()
        if pull.part:
            self._add_part(reply, asker, pull, now)
            return reply.pulled(pull.seq)
        before, gift = self.count, next(self._gifts)
        empty = self._empty_of(pull.shards)
        if empty:  # Most shards of most clusters, so they are given as one.
            for shard in empty:
                self.held[shard] = 0
                self._bare.pop(shard, None)
            nothing = Given(asker, now, gift, [NOTHING], "")
            self._given.add(empty, nothing)
            reply.add_given(empty, nothing, 0)
        done = set(empty)
        for shard in [shard for shard in pull.shards if shard not in done]:
            if reply.keys >= _KEYS_PER_ANSWER or reply.size >= BYTES_PER_PART:
                break
            if self.held[shard]:
                self._give(shard, asker, gift, now, stands_by)
            given = self._given.get(shard)
            is_taking = given is not None and (
                given.to != asker and now - given.last_asked_at < _TAKING_NS
            )
            if given is not None and given.parts and not is_taking:
                # Whoever was to have it has not said so: better it is counted somewhere.
                reply.add_given([shard], self._given.asked(shard, given, asker, now), 0)
                continue
            # Whoever was given it and asks for it has lost it: it was started again since.
            moved_to = given.to if given is not None and given.to != asker else ""
            if shard in self.copies:
                self._add_copy(reply, asker, shard, moved_to, now)
            else:
                reply.add_nothing(shard, moved_to)
        self._counters.add("shards_given", before - self.count)
        return reply.pulled(pull.seq)

    def kept(self, taker: NodeId, shards: Iterable[int], gift: int) -> None:
        """Drop shards of one transfer that its receiver has acknowledged."""
        self._given.confirm(shards, taker, gift)

    def _add_part(self, reply: Reply, asker: NodeId, pull: Pull, now: int) -> None:
        """Add a later part of the transfer whose first part the receiver has."""
        shard, part = pull.shards[0], pull.part
        given = self._given.get(shard)
        if given is not None and (given.to, given.number) != (asker, pull.gift):
            given = None
        if given is not None and part < len(given.parts):
            reply.add_given([shard], self._given.asked(shard, given, asker, now), part)
            return
        sent = self._sent.get(asker, shard, pull.gift, now)
        if sent is not None and part < len(sent.parts):
            reply.add_copy(shard, sent, part)
        else:
            reply.add_nothing(shard, "")

    def _add_copy(self, reply: Reply, asker: NodeId, shard: int, moved_to: str, now: int) -> None:
        """Add the first part of a copy; the other parts are kept unchanged until they are sent."""
        counts = self._copy_of(shard, now)
        parts = cut(counts, [[]] * len(counts.keys), self._least_parts)
        number = next(self._gifts) if len(parts) > 1 else 0
        sent = SentCopy(number, parts, moved_to, self.copies.sender_of(shard) or "", now)
        if len(parts) > 1:
            self._sent.add(asker, shard, sent)
        reply.add_copy(shard, sent, 0)

    def _empty_of(self, shards: Sequence[int]) -> list[int]:
        """Those of the shards that are held, and nothing of them is counted or lent."""
        if self._index is None or self._taken or (self.lender is not None and len(self.lender)):
            return []
        return [shard for shard in shards if self.held[shard] and shard not in self._index]

    def _give(
        self, shard: int, to: NodeId, gift: int, now: int, stands_by: Callable[[int], bool]
    ) -> None:
        assert self._index is not None
        keys = sorted(self._index.pop(shard, ()))
        if self.lender is not None and len(self.lender):
            lent = self.lender.write_off(lambda key: shard_of(key) == shard, now)
            keys = sorted({*keys, *lent})
        self.held[shard] = 0
        if not keys and not self._taken:
            self._given.add([shard], Given(to, now, gift, [NOTHING], ""))
            self._bare.pop(shard, None)
            return
        counts = self._engine.snapshot(keys, now)
        taken = self._taken.pop(shard, None)
        if taken is None and self._bare.get(shard):
            # What was regained here is told by whoever has had the shard all the time.
            taken = _Taken(to)
            mine = self._admitted_here(shard, counts.keys, now)
            self._add_tallies(taken.tally, counts, [mine.get(key, []) for key in counts.keys], now)
        rows = [taken.tally.row(key, now) if taken is not None else [] for key in counts.keys]
        parts = cut(counts, rows, self._least_parts)
        if stands_by(shard):
            self.copies.keep(to, counts, now)
        self._engine.forget(keys)
        for key in keys:
            self.dirty.pop(key, None)
        owner = taken.owner if taken is not None else ""
        is_from_before = taken is not None and taken.is_from_before
        ask = ""
        if taken is not None and not taken.has_base:
            ask = to if to in taken.unasked else next(iter(taken.unasked), taken.owner)
        since = 0 if taken is None else taken.since
        add_decided(parts, self._decided_checks.of_shard(shard, since, now))
        self._given.add([shard], Given(to, now, gift, parts, owner, is_from_before, ask))
        self._bare.pop(shard, None)
        self._counters.add("keys_given", len(counts.keys))

    def _copy_of(self, shard: int, now: int) -> Snapshot:
        """Bring the copies of a shard up to now, by counting them for a moment."""
        scratch = Engine(max_keys=1_000_000)
        for at, counts in self.copies.of(shard):
            scratch.restore(counts, at)
        return scratch.snapshot(scratch.keys(), now)

    # -- getting -------------------------------------------------------------------------------

    def adopt(
        self,
        shard: int,
        about: ShardGroup,
        sender: NodeId,
        counts: Snapshot,
        tallies: Sequence[Sequence[int]],
        now: int,
        decided: Sequence[DecidedCheck] = (),
    ) -> None:
        """Count a shard from now on that `sender` has given away, or join it with what is here.

        `about` is the group it came in. The same gift again changes nothing. Checks that both this
        node and the sender (`decided`) have decided are counted once.
        """
        gift = sender, about.gift
        if self._adopted.get(shard) == gift:
            return
        self._adopted[shard] = gift
        self._counters.add("shards_pulled")
        tallies = self._without_doubles(shard, counts.keys, tallies, decided, now)
        here = self._taken.get(shard)
        is_base_ours = here is not None and here.is_base_whole and about.taken_from == self._me
        lacked = list(self.copies.of(shard)) if about.moved_to == self._me else []
        if not self.held[shard]:
            self._restore(counts, now)
            self._hold(shard)
            if about.taken_from:
                # Whoever has the shard itself counts on from there: to him only the tally is news.
                # That may be another one also when it was ours: we gave it away in an earlier life.
                taken = self._taken[shard] = self._taken_with(about, FallbackLog(), now, decided)
                self._add_tallies(taken.tally, counts, tallies, now)
            for at, copy in lacked:
                self._go_on_with(shard, copy, min(at, now), now)
        elif here is not None and not is_base_ours and self._is_below(here, about, sender):
            # The sender never lost them; what we admitted in its place comes on top.
            del self._taken[shard]
            self._restore(counts, now)
            # Of keys that it has nothing of, our state is what we admitted, and stays.
            self._charge({key: here.tally.row(key, now) for key in counts.keys}, now)
            if about.taken_from not in ("", self._me) or (
                about.moved_to and here.base_of != sender
            ):
                # It stood in itself: to whom it did so, what both of us admitted is news.
                self._taken[shard] = self._taken_with(about, here.tally, now, decided)
                self._add_tallies(here.tally, counts, tallies, now)
            self._counters.add("splits_healed")
        elif about.taken_from and not (
            about.taken_from == self._me and about.is_from_before and shard in self._bare
        ):
            # Both sides began from the same counters: only what came on top is news.
            if is_base_ours:
                del self._taken[shard]
            elif here is not None:  # And news to whom we stand in for.
                self._add_tallies(here.tally, counts, tallies, now)
            self._charge(dict(zip(counts.keys, tallies, strict=True)), now)
            self._counters.add("splits_healed")
        else:
            # Two that counted from nothing, without knowing of each other; or the sender went on
            # from what an earlier life of ours had, and we have begun without that.
            mine = self._admitted_here(shard, counts.keys, now)
            self._restore(counts, now)
            self._charge(mine, now)
        self._bare.pop(shard, None)
        self.dirty.update(dict.fromkeys(counts.keys))
        self._came(counts.keys)
        self._counters.add("keys_pulled", len(counts.keys))

    def _is_below(self, here: _Taken, about: ShardGroup, sender: NodeId) -> bool:
        """Whether we go on from what was given, with what we admitted on top of it."""
        if not here.has_base and (about.moved_to or about.taken_from == here.owner):
            return True
        if about.moved_to and about.taken_from == self._me:
            # It stood in for us, and had not the copy that we have gone on from, unless that is a
            # copy of its own counters.
            return here.base_of == sender
        return here.owner == sender or not about.taken_from

    def _taken_with(
        self, about: ShardGroup, tally: FallbackLog, now: int, decided: Sequence[DecidedCheck]
    ) -> _Taken:
        return _Taken(
            NodeId(about.taken_from),
            tally,
            came_at=now,
            since=now - max([check.age_ns for check in decided], default=0),
            has_base=not about.moved_to,
            is_from_before=about.is_from_before,
            unasked=self._others(about.taken_from, about.moved_to),
        )

    def _without_doubles(
        self,
        shard: int,
        keys: Sequence[bytes],
        tallies: Sequence[Sequence[int]],
        decided: Sequence[DecidedCheck],
        now: int,
    ) -> Sequence[Sequence[int]]:
        """Remove one of the two charges of each check that this node and the sender admitted.

        The first charge stays: a repeat may have come in a later window.
        """
        ours_first, theirs_first = self._decided_checks.merge(decided, now)
        if not self.held[shard]:
            return tallies
        if theirs_first:
            self._engine.refund(
                [check.key for check in theirs_first],
                [check.cost for check in theirs_first],
                [check.age_ns for check in theirs_first],
                [check.row[LEASE] for check in theirs_first],
                (),
                (),
                now,
            )
        return _without(keys, tallies, ours_first) if ours_first else tallies

    def adopt_empty(self, shards: Iterable[int], about: ShardGroup, sender: NodeId) -> list[int]:
        """Count shards from now on that `sender` has given away without any counter.

        Returns those that were not held; to join the others with what is here is for `adopt`.
        """
        gift = sender, about.gift
        new = [shard for shard in shards if not self.held[shard]]
        for shard in new:
            if self._adopted.get(shard) != gift:
                self._adopted[shard] = gift
                self._counters.add("shards_pulled")
                self._hold(shard)
        return new

    def _admitted_here(self, shard: int, keys: Sequence[bytes], now: int) -> dict[bytes, list[int]]:
        """What was admitted here of each key, as if just now.

        Not what other data centers told: both sides have heard that. Nor what was regained of them:
        it is part of the other side's counters.
        """
        counts = self._engine.snapshot(keys, now)
        scratch = Engine(max_keys=max(1, len(counts.keys)))
        scratch.restore(Snapshot(counts.keys, counts.states, counts.limits, counts.which, []), now)
        regained = self._bare.get(shard, {})
        units = [max(0, scratch.used(key, now) - regained.get(key, 0)) for key in counts.keys]
        return {key: [0, each] for key, each in zip(counts.keys, units, strict=True) if each}

    def heard_of(self, before: Record | None, after: Record) -> None:
        """Take note of how another member stands."""
        name = NodeId(after.name)
        if before is not None and after.generation > before.generation:
            # It was started again, and has perhaps nothing of what was its own.
            for shard, taken in self._taken.items():
                if taken.owner == name:
                    self._taken[shard] = replace(taken, is_from_before=True)
        if after.is_placed:
            self._left.discard(name)
        elif after.status is not Status.DEAD:
            self._left.add(name)

    def _others(self, owner: str, *names: str) -> tuple[NodeId, ...]:
        return tuple([NodeId(name) for name in names if name not in ("", owner, self._me)])

    def begin(self, shards: Iterable[int]) -> None:
        """Count shards from nothing: nobody had them before."""
        begun = [shard for shard in shards if not self.held[shard]]
        for shard in begun:
            self._hold(shard)
            self._bare[shard] = {}
        if begun:
            self._begun(begun)

    def take_over(
        self,
        shard: int,
        owner: NodeId,
        copy: Iterable[tuple[int, Snapshot]],
        now: int,
        silent: Sequence[NodeId] = (),
        copy_of: str = "",
    ) -> None:
        """Count a shard whose owner cannot be reached, from copies and when each one came.

        `copy_of` is the member whose counters a copy from elsewhere has.

        Who was `silent` may have a copy: if there is none here, theirs must not be overwritten.

        Whose the own copies are is who will know what of our counters is news, whatever the ring
        says of the owner: that one may have come a moment ago, and have nothing yet. Unless it
        has left: then it has given the shard away.
        """
        if self.held[shard]:
            return
        sender = self.copies.sender_of(shard)
        taken = _Taken(owner if sender is None or sender in self._left else sender)
        given = self._given.get(shard)
        if given is not None and given.parts:
            # What we gave has perhaps never arrived, and no copy can be newer.
            copy = [(given.at, part.counts) for part in given.parts]
            taken = _Taken(
                NodeId(given.taken_from or given.to),
                is_base_whole=not given.taken_from,
                is_from_before=given.is_from_before,
            )
            silent = [NodeId(given.ask)]
            for part in given.parts:
                self._add_tallies(taken.tally, part.counts, part.tallies, given.at)
        is_empty, is_bare = True, bool(given and given.parts and given.ask)
        for at, counts in copy:
            is_empty = is_empty and not counts.keys
            self._restore(counts, min(at, now))
            self.dirty.update(dict.fromkeys(counts.keys))
            self._came(counts.keys)
        self._hold(shard)
        has_base = not is_empty and not is_bare
        self._taken[shard] = _Taken(
            taken.owner,
            taken.tally,
            taken.is_base_whole,
            taken.came_at,
            has_base,
            taken.is_from_before,
            since=given.at if given and given.parts else now,
            unasked=() if has_base else self._others(taken.owner, *silent),
            base_of=sender or copy_of,
        )
        if is_empty:
            self._begun([shard])
        self._counters.add("shards_taken")

    def regain(self, rows: Mapping[bytes, Sequence[int]], now: int) -> None:
        """Count again what was lost here: age in ns and units in turns, oldest first."""
        self._charge(rows, now, "hits_recalled")
        if self._bare:
            self._regained_at = now
            for key, row in rows.items():
                regained = self._bare.get(shard_of(key))
                if regained is not None:
                    regained[key] = regained.get(key, 0) + sum(row[1::2])
        self._came(list(rows))

    def keep_copy(self, sender: NodeId, counts: Snapshot, now: int) -> None:
        """Keep what an owner sent to its standby; in its place we go on from it."""
        self.copies.keep(sender, counts, now)
        if self._taken:
            self._follow(sender, counts, now)

    def _follow(self, sender: NodeId, counts: Snapshot, now: int) -> None:
        """The owner we stand in for is alive after all, and counts: take that as our base.

        Not so when it was started again, perhaps from nothing: then ours is what it lacks.
        Not so what another one counts that stands in for it, too: our hits may be part of that, and
        each copy to and fro would count them once more.
        """
        theirs = Snapshot([], [], [], [], [])
        rows: dict[bytes, list[int]] = {}
        for at, key in enumerate(counts.keys):
            taken = self._taken.get(shard_of(key))
            if taken is None or taken.owner != sender or taken.is_from_before:
                continue
            if counts.states[at]:
                append_row(theirs, counts, at)
                rows[key] = taken.tally.row(key, now)
        if theirs.keys:
            self._engine.restore(theirs, now)
            self._charge(rows, now)

    def _hold(self, shard: int) -> None:
        self.held[shard] = 1
        self._given.drop(shard)
        if shard in self.copies:
            self.copies.drop([shard])

    def _restore(self, counts: Snapshot, now: int) -> None:
        refused = self._engine.restore(counts, now)
        if refused:
            self._counters.add("states_refused", refused)

    def _add_tallies(
        self, tally: FallbackLog, counts: Snapshot, tallies: Sequence[Sequence[int]], now: int
    ) -> None:
        for at, row in enumerate(tallies):
            period_ns = counts.limits[counts.which[at]].period_ns
            tally.restore(counts.keys[at], row, period_ns, now)

    def _charge(
        self, rows: Mapping[bytes, Sequence[int]], now: int, counter: str = "hits_merged"
    ) -> None:
        keys: list[bytes] = []
        units: list[int] = []
        ages_ns: list[int] = []
        for key, row in rows.items():
            keys += [key] * (len(row) // 2)
            ages_ns += row[::2]
            units += row[1::2]
        self._engine.charge(keys, units, ages_ns, now)
        self.dirty.update(dict.fromkeys(keys))
        self._counters.add(counter, sum(units))

    # -- the standby's copy --------------------------------------------------------------------

    def state_of(self, keys: Sequence[bytes], now: int) -> Snapshot:
        """What the standby must know of keys; an empty state for those that are as new."""
        self.seen(keys)
        with nullcontext() if self.lender is None else self.lender.counted(keys, now):
            counts = self._engine.snapshot(keys, now)
        known = set(counts.keys)
        rested = [key for key in keys if key not in known]
        if rested:
            counts.limits.append(_NO_LIMIT)
            if counts.heard:
                counts.heard.extend({} for _ in rested)
            counts.keys.extend(rested)
            counts.states.extend([] for _ in rested)
            counts.which.extend([len(counts.limits) - 1] * len(rested))
        return counts


def _without(
    keys: Sequence[bytes], tallies: Sequence[Sequence[int]], doubles: Sequence[DecidedCheck]
) -> list[list[int]]:
    """Subtract the units of checks that both nodes admitted from another node's tallies."""
    rows = {key: [*row] for key, row in zip(keys, tallies, strict=True)}
    for check in doubles:
        row, units = rows.get(check.key, []), check.cost
        # The part of the period that the check fell into is the oldest that is not older than it.
        for at in sorted(range(0, len(row), 2), key=lambda at: abs(row[at] - check.age_ns)):
            taken = min(units, row[at + 1])
            row[at + 1] -= taken
            units -= taken
    return [rows[key] for key in keys]


def _no_answers(session: int, seq: int) -> tuple[tuple[bytes, ...], int]:
    """Remember no answers."""
    return (), 0
