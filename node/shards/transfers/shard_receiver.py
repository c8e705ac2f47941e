"""Requests for shards of other members, and the acknowledgement of complete transfers."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from hashring import NodeId, shard_of
from node.metrics.counters import Counters
from node.shards.shard_steps import FEW_SHARDS, ShardSteps
from ringfence import runtime
from ringfence.limiter import Snapshot
from ringfence.peering.link import Link
from ringfence.wire import (
    DecidedCheck,
    Ping,
    Pong,
    Pull,
    Pulled,
    ReplicaRequest,
    ShardGroup,
    TransferAck,
)

__all__ = ["IncomingTransfer", "ShardReceiver", "transfers_of"]

logger = logging.getLogger("ringfence.node")

_SILENCE = 1.0
"""Seconds for which a member that did not answer is not asked again."""
_LOOK = 1.0
"""Seconds after which a member that has not answered a request for shards is pinged. If it does not
answer the ping in as many seconds, it is silent."""
_AT_ONCE = 4
"""Most requests for many shards to one member at a time. The shards of an answer belong to no node
until this node has taken them over, and it processes one answer in each turn."""
_SHARDS_PER_STEP = 32
"""Accepted shards after which other tasks run, as when `ShardSteps.is_long`, accepted or not."""
_LONGEST_WAIT = 20.0
"""Longest wait for shards in seconds. A member with millions of counters first indexes its keys."""


class IncomingTransfer:
    """Transfer of one shard in several parts, with the parts that have arrived."""

    __slots__ = ("about", "counts", "decided", "fallback_counts", "next_part", "shard")

    def __init__(
        self, shard: int, about: ShardGroup, counts: Snapshot, fallback_counts: list[list[int]]
    ) -> None:
        """`about` has the fields of the first part of the transfer; `counts` and `fallback_counts`
        are its counters."""
        self.shard = shard
        self.about = about
        self.counts = counts
        self.fallback_counts = fallback_counts
        self.decided: list[DecidedCheck] = []
        """Checks of the shard that may be asked again."""
        self.next_part = 1

    @property
    def is_whole(self) -> bool:
        """Whether every part of the transfer has arrived."""
        return self.next_part >= self.about.parts

    def add(self, reply: Pulled) -> bool:
        """Add the next part; return False when the reply does not contain the next part."""
        if len(reply.groups) != 1 or not self._continues(reply.groups[0]):
            return False
        part = next(transfers_of(reply))
        mine, more = self.counts, part.counts
        if mine.remote_counts or more.remote_counts:
            remote_counts = mine.remote_counts or [{} for _ in mine.keys]
            mine.remote_counts = remote_counts + (more.remote_counts or [{} for _ in more.keys])
        if self.next_part == 1:
            mine.limits = mine.limits.copy()  # All shards of the first reply share this list.
        mine.which += [which + len(mine.limits) for which in more.which]
        mine.limits += more.limits
        mine.keys += more.keys
        mine.states += more.states
        self.fallback_counts += part.fallback_counts
        self.decided += part.decided
        self.next_part += 1
        return True

    def _continues(self, group: ShardGroup) -> bool:
        about = self.about
        return (
            group.shards == [self.shard]
            and group.transfer_id == about.transfer_id
            and group.parts == about.parts
            and group.hold is about.hold
        )


class ShardReceiver:
    """Requests shards from other members, and collects the parts of each transfer."""

    def __init__(
        self, counters: Counters, link_to: Callable[[NodeId], Link | None], steps: ShardSteps
    ) -> None:
        self._counters = counters
        self._link_to = link_to
        self._steps = steps
        self._last: dict[NodeId, deque[runtime.Event]] = {}
        """Ends of the last requests for many shards to each member."""
        self._silent_until: dict[NodeId, float] = {}
        """Members that did not answer, and when they are asked again."""

    def acknowledge(self, sender: NodeId, transfer_id: int, shards: Sequence[int]) -> None:
        """Acknowledge shards of one transfer that this node has received completely."""
        link = self._link_to(sender)
        if link is not None and shards:
            link.call(lambda seq: TransferAck(seq, sorted(shards), transfer_id), _ignore_reply)

    async def receive(
        self,
        sender: NodeId,
        reply: Pulled,
        asked: AbstractSet[int],
        take: Callable[[NodeId, IncomingTransfer], bool],
    ) -> list[int]:
        """Pass each of the `asked` shards of a reply to `take` once all its parts have arrived.

        The shards for which `take` returns True are acknowledged. Returns the shards that did not
        arrive completely: this node counts nothing of them, and the sender still has all their
        counters.
        """
        if not asked:
            return []  # The caller has processed all shards, because none has counters.
        # The ages of counters are those of the answer, so shards with counters do not wait.
        incoming = sorted(transfers_of(reply, asked), key=lambda each: not each.counts.keys)
        taken: dict[int, list[int]] = {}
        accepted = 0
        for transfer in incoming:
            if transfer.is_whole and take(sender, transfer):
                taken.setdefault(transfer.about.transfer_id, []).append(transfer.shard)
                accepted += 1
                if accepted % _SHARDS_PER_STEP == 0:
                    await self._steps.turn()
            if not transfer.counts.keys and self._steps.is_long:
                await self._steps.turn()
        for transfer_id, shards in taken.items():
            self.acknowledge(sender, transfer_id, shards)
        broken: list[int] = []
        for transfer in incoming:
            if transfer.is_whole:
                continue
            if not await self._gather(sender, transfer):
                broken.append(transfer.shard)
            elif take(sender, transfer):
                self.acknowledge(sender, transfer.about.transfer_id, [transfer.shard])
        return broken

    async def _gather(self, sender: NodeId, transfer: IncomingTransfer) -> bool:
        """Request the missing parts of a transfer; return False when one does not arrive in
        time."""
        while not transfer.is_whole:
            transfer_id = transfer.about.transfer_id
            reply = await self.pull(sender, [transfer.shard], transfer.next_part, transfer_id)
            if reply is None or not transfer.add(reply):
                self._counters.add("transfers_broken")
                return False
            self._counters.add("parts_pulled")
        return True

    async def pull(
        self,
        name: NodeId,
        shards: Sequence[int],
        part: int = 0,
        transfer_id: int = 0,
        *,
        replicas: ReplicaRequest = ReplicaRequest.IF_NOT_HELD,
    ) -> Pulled | None:
        """Request shards from a member; return None when it does not answer in time.

        After an answer with many shards, the caller has a step of `ShardSteps` to process them.
        Requests for many shards wait for earlier ones, see `_AT_ONCE`. For a later `part`,
        `transfer_id` is the number of the transfer.
        """
        pull = partial(Pull, shards=sorted(shards), part=part, transfer_id=transfer_id)
        make = partial(pull, replicas=replicas)
        if len(shards) <= FEW_SHARDS:
            return await self._pull(name, make, len(shards))
        last, is_over = self._last.setdefault(name, deque(maxlen=_AT_ONCE)), runtime.Event()
        before = last[0] if len(last) == _AT_ONCE else None
        last.append(is_over)
        try:
            if before is not None:
                await before.wait()
            return await self._pull(name, make, len(shards))
        finally:
            is_over.set()

    async def _pull(self, name: NodeId, make: Callable[[int], Pull], shards: int) -> Pulled | None:
        link = self._link_to(name)
        if link is None or runtime.current_time() < self._silent_until.get(name, 0):
            return None
        answered = runtime.Event()
        replies: list[Pulled] = []

        def on_reply(reply: object) -> None:
            if isinstance(reply, Pulled):
                replies.append(reply)
            answered.set()

        link.call(make, on_reply, _LONGEST_WAIT)
        await _wait_while_alive(link, answered)
        if not replies:
            logger.warning("no answer to a pull: member=%s shards=%d", name, shards)
            self._silent_until[name] = runtime.current_time() + _SILENCE
            return None
        if shards > FEW_SHARDS:
            await self._steps.turn()
        else:
            self._steps.start()
        return replies[0]


async def _wait_while_alive(link: Link, answered: runtime.Event) -> None:
    """Wait for an answer of a member as long as the member answers pings."""
    pongs: list[Pong] = []

    def on_pong(reply: object) -> None:
        if isinstance(reply, Pong):
            pongs.append(reply)

    while not answered.is_set():
        with runtime.move_on_after(_LOOK):
            await answered.wait()
        if answered.is_set():
            break
        pongs.clear()
        link.call(Ping, on_pong)
        with runtime.move_on_after(_LOOK):
            await answered.wait()
        if not pongs:
            break


def _ignore_reply(reply: object) -> None:
    """Ignore the reply to an acknowledgement."""


def transfers_of(
    reply: Pulled, asked: AbstractSet[int] | None = None
) -> Iterator[IncomingTransfer]:
    """Iterate over the shards of a reply, each with the part of its transfer that the reply
    contains.

    With `asked`, the other shards are skipped: usually thousands of empty ones.
    """
    decided: dict[int, list[DecidedCheck]] = {}
    for check in reply.decided:
        decided.setdefault(shard_of(check.key), []).append(check)
    counts, rows, start = reply.counts.unpack(), reply.fallback_counts, 0
    for group in reply.groups:
        if asked is not None and asked.isdisjoint(group.shards):
            start += sum(group.sizes)
            continue
        for shard, size in zip(group.shards, group.sizes, strict=True):
            if asked is None or shard in asked:
                some = _slice(counts, rows, start, start + size)
                transfer = IncomingTransfer(shard, group, *some)
                transfer.decided = decided.get(shard, [])
                yield transfer
            start += size


def _slice(
    counts: Snapshot, rows: list[list[int]], start: int, stop: int
) -> tuple[Snapshot, list[list[int]]]:
    if start == stop:  # The usual case for nearly all of thousands of shards.
        return Snapshot([], [], [], [], []), []
    chosen = Snapshot(
        counts.keys[start:stop],
        counts.states[start:stop],
        counts.limits,
        counts.which[start:stop],
        counts.remote_counts[start:stop] if counts.remote_counts else [],
    )
    return chosen, rows[start:stop] if rows else [[]] * len(chosen.keys)
