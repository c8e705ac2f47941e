"""Getting the shards that are this node's by the ring, and getting rid of those that are not.

Decides whom to ask for a shard and in which order, how long to wait, and when to go on without an
answer. What is given and how it is joined stands in `ownership`.
"""

import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from itertools import compress, islice, repeat
from operator import eq, gt

from hashring import SHARDS, NodeId, Ring
from node.containment import Containment
from node.metrics.counters import Counters
from node.shards.incoming_transfers import IncomingTransfer, transfers_of
from node.shards.ownership import ShardOwnership
from node.shards.shard_sender import ShardSender
from ringfence import runtime
from ringfence.limiter import Engine, Snapshot
from ringfence.peering.link import Link
from ringfence.wire import Holding, Pull, Pulled, TransferAck, TransferOffer

__all__ = ["Handoff"]

logger = logging.getLogger("ringfence.node")

_SHARDS_PER_PULL = 256
"""Whoever gives that many is busy for some 8 ms."""
_BREATH = 0.02
"""Seconds between two pulls that nobody waits for: those who give have checks to answer."""
_SILENCE = 1.0
"""Seconds for which a member that gave no answer is not waited for again."""
_ROUND = 0.5
"""Seconds between two looks at what is in the wrong place."""
_SLICE = 2000
"""Keys that are sorted by shard before others get their turn."""
_INDEX_KEPT = 5.0
_MOST_MOVES = 3
"""How often one search follows a shard to its receiver, or begins a broken transfer again."""


class Handoff:
    """Moves shards between this node and its peers."""

    def __init__(
        self,
        me: NodeId,
        holdings: ShardOwnership,
        sender: ShardSender,
        engine: Engine,
        counters: Counters,
        link_to: Callable[[NodeId], Link | None],
        reach: Callable[[NodeId], Awaitable[object]],
        clock: Callable[[], int],
        containment: Containment,
    ) -> None:
        """`reach` waits until checks can be sent to a member, or cannot."""
        self._reach = reach
        self._me = me
        self._holdings = holdings
        self._sender = sender
        self._engine = engine
        self._counters = counters
        self._link_to = link_to
        self._clock = clock
        self._containment = containment
        self._ring = Ring.of(())
        self._ours = bytes(SHARDS)
        """1 at the index of each shard that is ours by the ring, else 0."""
        self._sources: dict[int, tuple[NodeId, ...]] = {}
        """Who may have a shard that is ours by the ring, the likeliest first."""
        self._stood_by: set[int] = set()
        """Shards that became ours by the ring while this node was their standby."""
        self._silent_until: dict[NodeId, float] = {}
        """Members that did not give what they were asked for, and when they are asked again."""
        self._pulling: set[int] = set()
        self._waited_for: dict[int, runtime.Event] = {}
        self._reclaims: list[tuple[set[int], Callable[[], None]]] = []
        """Shards that are being reclaimed, and the callback for when all have arrived."""
        self._nursery: runtime.TaskGroup | None = None
        self._wake = runtime.Event()
        self._indexing: runtime.Event | None = None
        self._index_until = 0.0
        self._emptied = runtime.Event()
        self._fetched = runtime.Event()

    # -- what the view says --------------------------------------------------------------------

    def follow(self, old: Ring, new: Ring, asked: Ring) -> None:
        """Take note of another ring; shards that are ours now are fetched in the background.

        `asked` is the ring that checks are sent by. Those who leave are still in it, and have
        copies that nobody else has when an owner dies just then.
        """
        leaving = sorted({m.name for m in asked.members} - {m.name for m in new.members})
        self._ring = new
        after = new.owner_by_shard
        self._ours = bytes(map(eq, after, repeat(self._me))) or bytes(SHARDS)
        for shard in [shard for shard in self._sources if not self._ours[shard]]:
            del self._sources[shard]
            self._stood_by.discard(shard)
        self._wake.set()
        if not self._is_lacking:
            return
        nobody = (None,) * SHARDS
        before = old.owner_by_shard or nobody
        copied = old.standby_by_shard or nobody
        standing_by = new.standby_by_shard or nobody
        seen: dict[object, tuple[NodeId, ...]] = {}
        for shard in compress(range(SHARDS), map(gt, self._ours, self._holdings.held)):
            known = self._sources.get(shard, ())
            if copied[shard] == self._me and shard not in self._sources:
                self._stood_by.add(shard)
            sources = before[shard], copied[shard], standing_by[shard], known
            if sources not in seen:  # Thousands of shards have the same few sources.
                names = (*sources[:3], *known, *leaving)
                others = [name for name in names if name and name != self._me]
                seen[sources] = tuple(dict.fromkeys(others))
            self._sources[shard] = seen[sources]

    async def run(self) -> None:
        """Put things in their place until cancelled."""
        async with runtime.open_task_group() as nursery:
            self._nursery = nursery
            while True:
                with runtime.move_on_after(_ROUND):
                    await self._wake.wait()
                self._wake = runtime.Event()
                # Each step goes on when another one meets an internal error.
                await self._containment.run("handoff", self._fetch_what_is_ours)
                self._containment.call("handoff", self._offer_what_is_not)
                await self._containment.run("handoff", self._join_what_was_taken)
                self._containment.call("handoff", self._forget_what_is_old)

    def _forget_what_is_old(self) -> None:
        now = self._clock()
        self._holdings.expire(now)
        self._sender.expire(now)
        if self._sender.is_indexed and runtime.current_time() > self._index_until:
            self._sender.index(None)

    async def wait_full(self) -> None:
        """Wait until everything that is ours by the ring is held."""
        while self._lacking():
            self._fetched = runtime.Event()
            self._wake.set()
            await self._fetched.wait()

    async def wait_empty(self) -> None:
        """Offer everything to its owners by the ring until they have all of it."""
        while not self._holdings.is_empty:
            self._emptied = runtime.Event()
            self._wake.set()
            with runtime.move_on_after(_ROUND):
                await self._emptied.wait()

    # -- getting -------------------------------------------------------------------------------

    async def acquire(self, shards: Iterable[int]) -> None:
        """Wait until the shards, ours by the ring, are held; fetching is not undone by leaving."""
        wanted = [shard for shard in shards if not self._holdings.held[shard]]
        self._begin_to_pull([shard for shard in wanted if shard not in self._pulling])
        for shard in wanted:
            if shard in self._pulling:
                await self._waited_for.setdefault(shard, runtime.Event()).wait()

    def _begin_to_pull(self, shards: Sequence[int], first: NodeId | None = None) -> None:
        if not shards:
            return
        assert self._nursery is not None
        self._pulling.update(shards)
        self._nursery.start_soon(self._pull_all, shards, first)

    async def _pull_all(self, shards: Sequence[int], first: NodeId | None) -> None:
        try:
            await self._containment.run("handoff", self._search, shards, first)
        finally:
            self.found(shards)

    async def _search(self, shards: Sequence[int], first: NodeId | None) -> None:
        await _Search(self, shards, first).run()

    def found(self, shards: Iterable[int]) -> None:
        """Let those go on who wait for any of the shards."""
        self._pulling.difference_update(shards)
        if self._reclaims:
            self._on_found(shards)
        if not self._waited_for:
            return  # Nobody waits for most of the thousands that come at once.
        for shard in shards:
            event = self._waited_for.pop(shard, None)
            if event is not None:
                event.set()

    def thank(self, giver: NodeId, gift: int, shards: Sequence[int]) -> None:
        """Acknowledge shards of one transfer that this node has whole."""
        link = self._link_to(giver)
        if link is not None and shards:
            link.call(lambda seq: TransferAck(seq, sorted(shards), gift), _nothing)

    async def _fetch_what_is_ours(self) -> None:
        wanted = self._lacking()
        if not wanted:
            return
        for start in range(0, len(wanted), _SHARDS_PER_PULL):
            part = wanted[start : start + _SHARDS_PER_PULL]
            await self.acquire(part)
            if any([self._sources.get(shard) for shard in part]):
                await runtime.sleep(_BREATH)
        logger.info("%d shards are counted here now", self._holdings.count)
        self._fetched.set()

    @property
    def owned_count(self) -> int:
        """How many shards are ours by the ring."""
        return self._ours.count(1)

    @property
    def _is_lacking(self) -> bool:
        return _has_more(self._ours, self._holdings.held)

    def _lacking(self) -> list[int]:
        if not self._is_lacking:
            return []
        held = self._holdings.held
        return [shard for shard in self._sources if not held[shard]]

    async def _join_what_was_taken(self) -> None:
        """Ask those whose shards we took over whether they are back."""
        by_owner = self._holdings.members_to_ask(self._ours, self._clock())
        for owner, shards in by_owner.items():
            for start in range(0, len(shards), _SHARDS_PER_PULL):
                if not await self._join(owner, shards[start : start + _SHARDS_PER_PULL]):
                    break

    async def _join(self, owner: NodeId, shards: Sequence[int]) -> bool:
        """Merge a member's counters of shards with those here; False when it did not answer."""
        left = dict.fromkeys(shards)
        while left:
            reply = await self.pull(owner, [*left])
            if reply is None:
                return False
            answered = [shard for group in reply.groups for shard in group.shards if shard in left]
            await self.receive(owner, reply, left, self._adopt)
            for shard in answered:
                del left[shard]
            if not answered:
                break
        return True

    async def receive(
        self,
        giver: NodeId,
        reply: Pulled,
        asked: Container[int],
        take: Callable[[NodeId, IncomingTransfer], bool],
    ) -> list[int]:
        """Pass each of the `asked` shards of a reply to `take` once all its parts have arrived.

        Shards that `take` returns True for are acknowledged. Returns those that did not arrive
        whole: nothing of them is counted here, and the giver still has all of it.
        """
        incoming = [each for each in transfers_of(reply) if each.shard in asked]
        taken: dict[int, list[int]] = {}
        for transfer in incoming:
            if transfer.is_whole and take(giver, transfer):
                taken.setdefault(transfer.about.gift, []).append(transfer.shard)
        for gift, shards in taken.items():
            self.thank(giver, gift, shards)
        broken: list[int] = []
        for transfer in incoming:
            if transfer.is_whole:
                continue
            if not await self._gather(giver, transfer):
                broken.append(transfer.shard)
            elif take(giver, transfer):
                self.thank(giver, transfer.about.gift, [transfer.shard])
        return broken

    async def _gather(self, giver: NodeId, transfer: IncomingTransfer) -> bool:
        """Ask for the parts that are missing; False when one does not come in time."""
        while not transfer.is_whole:
            gift = transfer.about.gift
            reply = await self.pull(giver, [transfer.shard], transfer.next_part, gift)
            if reply is None or not transfer.add(reply):
                self._counters.add("transfers_broken")
                return False
            self._counters.add("parts_pulled")
        return True

    async def pull(
        self, name: NodeId, shards: Sequence[int], part: int = 0, gift: int = 0
    ) -> Pulled | None:
        """Ask a member for shards; None when it does not answer in time.

        `gift` numbers the transfer of which a later `part` is asked for.
        """
        link = self._link_to(name)
        if link is None or runtime.current_time() < self._silent_until.get(name, 0):
            return None
        answered = runtime.Event()
        replies: list[Pulled] = []

        def on_reply(reply: object) -> None:
            if isinstance(reply, Pulled):
                replies.append(reply)
            answered.set()

        link.call(lambda seq: Pull(seq, sorted(shards), part, gift), on_reply)
        await answered.wait()
        if not replies:
            logger.warning("member %s did not give %d shards", name, len(shards))
            self._silent_until[name] = runtime.current_time() + _SILENCE
            return None
        return replies[0]

    def _adopt(self, sender: NodeId, transfer: IncomingTransfer) -> bool:
        """Join a whole shard with what is here; return whether it was a transfer to this node."""
        shard, group, counts = transfer.shard, transfer.about, transfer.counts
        now = self._clock()
        if group.hold is Holding.HELD:
            self._holdings.accept(
                shard, group, sender, counts, transfer.tallies, now, transfer.decided
            )
            return True
        cover = self._holdings.cover_of(shard)
        if cover is None or sender != cover.owner:
            self._holdings.replica_answered(shard, sender, counts, now)
        elif group.moved_to and group.moved_to != self._me:
            self._holdings.owner_moved(shard, NodeId(group.moved_to), now)
        elif group.hold is Holding.COPY:
            self._holdings.owner_has_replica(shard, counts, group.taken_from, now)
        else:
            self._holdings.owner_has_nothing(shard, now)
        return False

    def _is_ours(self, shard: int) -> bool:
        return bool(self._ours[shard])

    def reclaim(self, name: NodeId, shards: Sequence[int], done: Callable[[], None]) -> None:
        """Fetch shards that a member counts in this node's place; `done` when that is over."""
        if not shards:
            done()
            return
        self._reclaims.append((set(shards), done))
        self._begin_to_pull([shard for shard in shards if shard not in self._pulling], name)

    def _on_found(self, shards: Iterable[int]) -> None:
        """Call back the reclaims whose shards are all no longer on their way."""
        for waited, done in [*self._reclaims]:
            waited.difference_update(shards)
            if not waited:
                self._reclaims.remove((waited, done))
                done()

    # -- giving --------------------------------------------------------------------------------

    def offered(self, sender: NodeId, shards: Sequence[int]) -> None:
        """A peer has shards that are ours in its view: fetch them, whatever our own view says."""
        free: list[int] = []
        for shard in shards:
            if shard in self._sources and not self._holdings.held[shard]:
                known = self._sources[shard]  # Its turn will come.
                if known[:1] != (sender,):
                    self._sources[shard] = (sender, *[name for name in known if name != sender])
            elif shard not in self._pulling:
                free.append(shard)
        for start in range(0, len(free), _SHARDS_PER_PULL):
            self._begin_to_pull(free[start : start + _SHARDS_PER_PULL], sender)

    async def answer(self, asker: NodeId, pull: Pull) -> Pulled:
        """Give what a peer asks for."""
        held = self._holdings.held
        if any([held[shard] for shard in pull.shards]):
            await self._reach(asker)
            await self._index()
        ring = self._ring
        return self._sender.answer(
            asker,
            pull,
            self._clock(),
            lambda shard: bool(ring.owner_by_shard) and ring.standby(shard) == self._me,
        )

    def kept(self, taker: NodeId, shards: Sequence[int], gift: int) -> None:
        """A peer acknowledges shards of one transfer."""
        self._holdings.acknowledge(taker, shards, gift)
        if self._holdings.is_empty:
            self._emptied.set()

    async def _index(self) -> None:
        """Sort all keys by shard, a slice at a time."""
        self._index_until = runtime.current_time() + _INDEX_KEPT
        if self._indexing is not None:
            await self._indexing.wait()
        if self._sender.is_indexed:
            return
        self._indexing = runtime.Event()
        try:
            self._sender.index([])
            keys = iter(self._engine.keys())
            while some := list(islice(keys, _SLICE)):
                self._sender.index(some)
                await runtime.checkpoint()
        except BaseException:
            self._sender.index(None)  # An index of some keys would lose the others.
            raise
        finally:
            self._indexing.set()
            self._indexing = None

    def _offer_what_is_not(self) -> None:
        by_owner: dict[NodeId, list[int]] = {}
        for shard, taker in self._holdings.transfers.unconfirmed():  # A transfer may be lost.
            by_owner.setdefault(taker, []).append(shard)
        owners, held = self._ring.owner_by_shard, self._holdings.held
        if owners and _has_more(held, self._ours):
            for shard in compress(range(SHARDS), map(gt, held, self._ours)):
                by_owner.setdefault(owners[shard], []).append(shard)
        for owner, shards in by_owner.items():
            link = self._link_to(owner)
            if link is not None:
                link.call(lambda seq, shards=shards: TransferOffer(seq, sorted(shards)), _nothing)  # type: ignore[misc]


class _Search:
    """The way of some shards to this node: who was asked, and what each one had."""

    def __init__(self, handoff: Handoff, shards: Sequence[int], first: NodeId | None) -> None:
        self._handoff = handoff
        self._left: dict[int, list[NodeId]] = {}
        """Whom to ask still, by shard."""
        self._copies: dict[int, tuple[str, Snapshot]] = {}
        """Replicas that were found, each with the member whose counters it has."""
        self._silent: dict[int, list[NodeId]] = {}
        """Who did not answer, the likeliest holder of a shard first."""
        self._moves: dict[int, int] = {}
        for shard in shards:
            taker = handoff._holdings.transfers.receiver_of(shard)
            known = handoff._sources.get(shard, ())
            if taker is None and (first is None or known[:1] == (first,)):
                self._left[shard] = list(known)  # So it is with nearly all of thousands.
            else:
                everybody = dict.fromkeys([first, taker, *known])
                self._left[shard] = [name for name in everybody if name]
        self._first = first

    async def run(self) -> None:
        while self._left:
            by_name = self._next_to_ask()
            async with runtime.open_task_group() as nursery:
                for name, shards in by_name.items():
                    nursery.start_soon(self._ask, name, shards)

    def _next_to_ask(self) -> dict[NodeId, list[int]]:
        """Whom to ask now, and for which shards; those that nobody is left for are given up."""
        by_name: dict[NodeId, list[int]] = {}
        nobodys: list[int] = []
        for shard, names in self._left.items():
            if names:
                by_name.setdefault(names[0], []).append(shard)
            else:
                nobodys.append(shard)
        self._give_up(nobodys)
        return by_name

    async def _ask(self, name: NodeId, shards: list[int]) -> None:
        reply = await self._handoff.pull(name, shards)
        groups = [] if reply is None else reply.groups
        asked = set(shards).intersection(shard for each in groups for shard in each.shards)
        if reply is None or not asked:
            for shard in shards:
                self._silent.setdefault(shard, []).append(name)
                self._left[shard].remove(name)
            return
        self._adopt_empty(name, reply)
        asked.intersection_update(self._left)
        for shard in await self._handoff.receive(name, reply, asked, self._take):
            self._begin_again(shard, name)

    def _take(self, name: NodeId, transfer: IncomingTransfer) -> bool:
        """Take what a member has of a shard; return whether it was a transfer to this node."""
        shard, group, handoff = transfer.shard, transfer.about, self._handoff
        if group.hold is Holding.HELD:
            del self._left[shard]
            now = handoff._clock()
            handoff._holdings.accept(
                shard, group, name, transfer.counts, transfer.tallies, now, transfer.decided
            )
            handoff.found((shard,))
            return True
        if group.hold is Holding.COPY:
            self._copies.setdefault(shard, (group.taken_from, transfer.counts))
        self._left[shard].remove(name)
        self._go_on(shard, NodeId(group.moved_to))
        return False

    def _adopt_empty(self, name: NodeId, reply: Pulled) -> None:
        """Count what came without any counter, as most shards of most clusters do, all at once."""
        for group in reply.groups:
            if group.hold is Holding.HELD and not group.taken_from and group.parts == 1:
                empty = [
                    shard
                    for shard, size in zip(group.shards, group.sizes, strict=True)
                    if not size and name in self._left.get(shard, ())
                ]
                held = self._handoff._holdings.accept_empty(empty, group, name)
                for shard in held:
                    del self._left[shard]
                self._handoff.found(held)
                self._handoff.thank(name, group.gift, held)

    def _begin_again(self, shard: int, name: NodeId) -> None:
        """Ask for a shard from its first part again, since a later part did not arrive."""
        moves = self._moves[shard] = self._moves.get(shard, 0) + 1
        if moves > _MOST_MOVES:
            self._silent.setdefault(shard, []).append(name)
            self._left[shard].remove(name)

    def _go_on(self, shard: int, moved_to: NodeId) -> None:
        """Ask whoever was given the shard next."""
        moves = self._moves.get(shard, 0)
        if moved_to and moved_to != self._handoff._me and moves < _MOST_MOVES:
            self._moves[shard] = moves + 1
            self._left[shard].insert(0, moved_to)

    def _give_up(self, shards: Sequence[int]) -> None:
        """Nobody has these shards themselves: go on from copies, or from nothing."""
        if not shards:
            return
        handoff, holdings = self._handoff, self._handoff._holdings
        now = handoff._clock()
        unknown: list[int] = []
        blind: dict[tuple[NodeId, tuple[NodeId, ...]], list[int]] = {}
        begun: list[int] = []
        held, ours, replicas = holdings.held, handoff._ours, holdings.replicas
        for shard in shards:
            del self._left[shard]
            if held[shard] or not ours[shard]:
                continue
            silent = self._silent.get(shard, [])
            is_sent = holdings.transfers.is_unconfirmed(shard)
            copies, copy_of = list(replicas.of(shard)) if shard in replicas else [], ""
            if shard in self._copies and not (copies and shard in handoff._stood_by):
                # The standby has the newest copy; a former standby may have kept an older one.
                copy_of, found = self._copies[shard]
                copies.append((now, found))
            if not (silent or copies or is_sent):
                unknown.append(shard)
                continue
            owner = next(iter(silent or handoff._sources.get(shard, ())), handoff._me)
            begun.append(shard)
            if copies or is_sent:
                holdings.take_over(shard, owner, copies, now, silent, copy_of)
            else:
                blind.setdefault((owner, (*silent,)), []).append(shard)
        for (owner, members), lost in blind.items():
            holdings.take_over_blind(lost, owner, now, members)
        holdings.start(unknown)
        # Not those that are another's: while this search lasts, an offer must begin no second one.
        handoff.found(unknown + begun)


def _has_more(some: bytes | bytearray, others: bytes | bytearray) -> bool:
    """Whether a shard is marked among `some` that is not among `others`.

    Nearly always everything is in its place, and both are equal; else one look at all shards at
    once tells.
    """
    return some != others and bool(int.from_bytes(some) & ~int.from_bytes(others))


def _nothing(reply: object) -> None:
    """What follows from an offer comes as a pull."""
