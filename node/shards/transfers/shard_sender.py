"""Answers to members that request shards: transfers, replicas, or nothing.

Decides what is sent of a shard, and in how many parts. When the answer is built, this node no
longer holds a transferred shard. Its parts are stored until the receiver has acknowledged them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress, count

from hashring import SHARDS, NodeId, group_by, pick
from node.metrics.counters import Counters
from node.requests.leases.lease_grants import Lender
from node.requests.sessions.caller import Caller
from node.shards.log_rows import log_rows
from node.shards.ownership.cover import Cover
from node.shards.ownership.origins import merge_origins
from node.shards.ownership.ownership import ShardOwnership
from node.shards.shard_steps import SHARDS_PER_ANSWER
from node.shards.transfers.key_index import KeyIndex
from node.shards.transfers.unacknowledged_transfers import (
    BYTES_PER_PART,
    NOTHING,
    OutgoingTransfer,
    Part,
    Reply,
    SentCopies,
    SentCopy,
    add_decided,
    add_unused,
    cut,
)
from ringfence.limiter import Engine, PackedSnapshot
from ringfence.wire import MAX_ORIGINS, Pull, Pulled, ReplicaRequest

__all__ = ["ShardSender"]

_KEYS_PER_ANSWER = 700
"""Keys in an answer above which no further shard is added, as above `SHARDS_PER_ANSWER` and when
`ShardSteps.is_long`. The receiver asks again for the others. While shards are covered,
`SHARDS_PER_ANSWER` is also the number of groups of shards without counters."""
_GROUPED_PER_ANSWER = 128
"""Shards without counters that are compared for one answer, while shards are covered."""
_ALL_SHARDS = range(SHARDS)
_RECEIVING_NS = 1_000_000_000
"""Acknowledgement time-out of a transfer: after it, another member may receive the shard. Two
receivers would both pass on the log of what was admitted in the owner's place."""


class ShardSender:
    """Sends shards of this node to the members that request them."""

    def __init__(
        self,
        ownership: ShardOwnership,
        engine: Engine,
        counters: Counters,
        *,
        first_transfer: int,
        least_parts: int = 1,
        lender: Lender[Caller] | None = None,
    ) -> None:
        """Transfers are numbered from `first_transfer`, above all numbers from before a restart.

        A shard with at least one counter is sent in at least `least_parts` parts; tests use
        several.
        """
        self._ownership = ownership
        self._transfers = ownership.transfers
        self._changed = ownership.changed
        self._engine = engine
        self._counters = counters
        self._numbers = count(first_transfer)
        self._least_parts = least_parts
        self._lender = lender
        self._sent = SentCopies()
        self.index = KeyIndex(engine)

    @property
    def is_serving(self) -> bool:
        """Whether members have fetched shards or replicas a moment ago, and may fetch more."""
        return self.index.is_used or len(self._sent) > 0

    # -- answers -------------------------------------------------------------------------------

    def answer(
        self, requester: NodeId, pull: Pull, now: int, is_standby_for: Callable[[int], bool]
    ) -> Pulled:
        """Transfer the requested shards that this node holds; send replicas of the others, if any.

        After a transfer, this node keeps a replica of each shard whose standby it is.
        """
        is_asked = bytearray(SHARDS)
        for shard in pull.shards:
            is_asked[shard] = 1
        if self.index.is_used:
            changed = self._changed.keys
            self.index.add([*compress(changed, pick(changed, is_asked))])
        reply = Reply()
        if pull.part:
            self._add_part(reply, requester, pull, now)
            return reply.pulled(pull.seq)
        if pull.replicas is ReplicaRequest.ONLY:
            self._ownership.steps.start()
            self._add_earlier_replicas(reply, requester, pull.shards, now)
            return reply.pulled(pull.seq)
        held = self._ownership.held
        number = next(self._numbers)
        again = self._resend_empty(reply, pull.shards, requester, now)
        lent_keys = [] if self._lender is None else self._lender.all_lent_keys(now)
        lent = group_by(lent_keys, _ALL_SHARDS, is_asked)
        if self._lender is not None:
            ended = self._lender.unreported_keys
            self._lender.forget_unreported([*compress(ended, pick(ended, is_asked))])
        mark, steps = self._ownership.origins.new_mark(), self._ownership.steps
        steps.start()  # What is before this is the same for each answer.
        empty = self._empty_of(pull.shards, lent)
        most = _GROUPED_PER_ANSWER if self._ownership.covers else SHARDS
        sent = self._send_empty(reply, empty[:most], requester, number, mark, now)
        done, given = {*sent, *empty[most:], *again}, len(sent)
        for shard in [shard for shard in pull.shards if shard not in done]:
            if _is_full(reply):
                break
            if held[shard]:
                keys = self.index.take(shard)
                if shard in lent:
                    assert self._lender is not None
                    self._lender.charge_transferred(lent[shard], now)
                    keys = sorted({*keys, *lent[shard]})
                self._send(shard, keys, requester, number, mark, now, is_standby_for)
                given += 1
            self._add_first_part(reply, shard, requester, pull.replicas, now)
            if steps.is_long:
                break
        self._counters.add("shards_given", given)
        return reply.pulled(pull.seq)

    def _resend_empty(
        self, reply: Reply, shards: Sequence[int], requester: NodeId, now: int
    ) -> list[int]:
        """Send unacknowledged transfers of shards without counters again; return these shards."""
        groups: list[tuple[OutgoingTransfer, list[int]]] = []
        for shard in self._transfers.unconfirmed_among(shards):
            transfer = self._transfers.get(shard)
            if transfer is None or transfer.to != requester or transfer.parts[0] is not NOTHING:
                continue
            if not groups or groups[-1][0] is not transfer:
                groups.append((transfer, []))
            groups[-1][1].append(shard)
        for transfer, again in groups:
            reply.add_transfer(
                again, self._transfers.set_receiver(again, transfer, requester, now), 0
            )
        return [shard for _, again in groups for shard in again]

    def _add_first_part(
        self, reply: Reply, shard: int, requester: NodeId, replicas: ReplicaRequest, now: int
    ) -> None:
        transfer = self._transfers.get(shard)
        is_receiving = transfer is not None and (
            transfer.to != requester and now - transfer.last_request_at < _RECEIVING_NS
        )
        if transfer is not None and transfer.parts and not is_receiving:
            # The first receiver has not acknowledged the transfer, so another member may receive
            # it.
            reply.add_transfer(
                [shard], self._transfers.set_receiver([shard], transfer, requester, now), 0
            )
            return
        # A receiver that asks again has restarted meanwhile and lost the counters.
        moved_to = transfer.to if transfer is not None and transfer.to != requester else ""
        if replicas is not ReplicaRequest.NONE and shard in self._ownership.replicas:
            self._add_copy(reply, requester, shard, moved_to, now)
        else:
            reply.add_nothing([shard], moved_to)

    def _add_part(self, reply: Reply, requester: NodeId, pull: Pull, now: int) -> None:
        """Add a later part of a transfer to the answer, for a receiver that has the first part."""
        shard, part = pull.shards[0], pull.part
        transfer = self._transfers.get(shard)
        if transfer is not None and (transfer.to, transfer.number) != (requester, pull.transfer_id):
            transfer = None
        if transfer is not None and part < len(transfer.parts):
            reply.add_transfer(
                [shard], self._transfers.set_receiver([shard], transfer, requester, now), part
            )
            return
        sent = self._sent.get(requester, shard, pull.transfer_id, now)
        if sent is not None and part < len(sent.parts):
            reply.add_copy(shard, sent, part)
        else:
            reply.add_nothing([shard], "")

    def _add_earlier_replicas(
        self, reply: Reply, requester: NodeId, shards: Sequence[int], now: int
    ) -> None:
        """Add replicas of the requester's earlier counters to the answer.

        Shards that this node holds are omitted, as are shards in unacknowledged transfers: their
        counters will arrive in a transfer.
        """
        held, unconfirmed = self._ownership.held, self._transfers.unconfirmed_among(shards)
        asked = {shard for shard in shards if not held[shard]}.difference(unconfirmed)
        copied = self._ownership.replicas.sent_by(requester, sorted(asked))
        without = sorted(asked.difference(copied))
        reply.add_nothing(without, "")  # Most shards of most clusters, so they are one group.
        for shard in copied:
            if _is_full(reply):
                break
            self._add_copy(reply, requester, shard, "", now)
            if self._ownership.steps.is_long:
                break

    def _add_copy(
        self, reply: Reply, requester: NodeId, shard: int, moved_to: str, now: int
    ) -> None:
        """Add the first part of a replica to the answer, and store the other parts until they are
        requested."""
        parts = cut(self._replica_of(shard, now), [], self._least_parts)
        number = next(self._numbers) if len(parts) > 1 else 0
        whose = self._ownership.replicas.sender_of(shard) or ""
        origins = self._ownership.replicas.origins_of(shard)
        sent = SentCopy(number, parts, moved_to, whose, now, origins)
        if len(parts) > 1:
            self._sent.add(requester, shard, sent)
        reply.add_copy(shard, sent, 0)

    def _replica_of(self, shard: int, now: int) -> PackedSnapshot:
        """Return a shard's replica as of now, computed in a separate engine."""
        scratch = Engine(max_keys=1_000_000)
        for at, counts in self._ownership.replicas.of(shard):
            scratch.restore(counts, at)
        return scratch.pack(scratch.keys(), now, with_unused=False)

    # -- transfers -----------------------------------------------------------------------------

    def _empty_of(self, shards: Sequence[int], lent: Mapping[int, Sequence[bytes]]) -> list[int]:
        """Return the shards that this node holds and that have no counter and no lease."""
        if not self.index.is_used:
            return []
        held, has_keys = self._ownership.held, self.index.has_keys
        return [each for each in shards if held[each] and not has_keys(each) and each not in lent]

    def _send_empty(
        self, reply: Reply, shards: Sequence[int], to: NodeId, number: int, mark: int, now: int
    ) -> list[int]:
        """Stop holding shards without counters, and add them to the answer as few groups.

        Most shards of most clusters have no counters. While this node covers shards, those that
        have other data to send are left out, and those after the last group that an answer may
        have. Returns the shards that were added.
        """
        groups = [(OutgoingTransfer(to, now, number, [NOTHING], ""), shards)] if shards else []
        if self._ownership.covers:
            groups = self._empty_groups(shards, to, number, mark, now)
        for transfer, alike in groups:
            self._ownership.release_empty(alike, now)
            self._transfers.add(alike, transfer)
            reply.add_transfer(alike, transfer, 0)
        return [shard for _, alike in groups for shard in alike]

    def _empty_groups(
        self, shards: Sequence[int], to: NodeId, number: int, mark: int, now: int
    ) -> list[tuple[OutgoingTransfer, Sequence[int]]]:
        """Return transfers of shards that have nothing to send, each with its shards."""
        groups: dict[tuple[object, ...], tuple[OutgoingTransfer, list[int]]] = {}
        ownership, decided = self._ownership, self._ownership.decided_checks
        for shard in shards:
            log, is_blind = ownership.log_of(shard), ownership.is_blind(shard)
            if shard in ownership.regained or (log is not None and log.has_data):
                continue
            if decided.of_shard(shard, 0 if log is None else log.since, now):
                continue
            transfer = self._transfer(shard, to, number, mark, [NOTHING], log, is_blind, now)
            about = transfer.taken_from, transfer.is_from_before, transfer.ask, transfer.copied_at
            key = (*about, transfer.origins, transfer.marks)
            groups.setdefault(key, (transfer, []))[1].append(shard)
            decided.on_charges_transferred(shard, now)
            if len(groups) == SHARDS_PER_ANSWER or ownership.steps.is_long:
                break
        return [*groups.values()]

    def _send(
        self,
        shard: int,
        keys: Sequence[bytes],
        to: NodeId,
        number: int,
        mark: int,
        now: int,
        is_standby_for: Callable[[int], bool],
    ) -> None:
        """Stop holding a shard with these keys, and store its counters as parts of a transfer.

        All transfers of one answer have the same `number` and `mark`.
        """
        counts = self._engine.pack(keys, now, with_unused=False)
        released = self._ownership.release(shard, now)
        cover = released.cover
        if cover is None and released.regained:
            # A member that counted the shard all the time already has the recovered units.
            cover = Cover(to, 0, mark=self._ownership.origins.new_mark())
            cover.log = self._ownership.merge.admitted(counts.unpack(), released.regained, now)
        rows: list[list[int]] = []
        if cover is not None and (keys or cover.log.unused_keys):
            columns = counts.unpack()
            add_unused(columns, cover.log.unused_keys)
            rows, counts = log_rows(cover.log, columns, now), PackedSnapshot.of(columns)
        parts = cut(counts, rows, self._least_parts)
        decided = self._ownership.decided_checks
        add_decided(parts, decided.of_shard(shard, 0 if cover is None else cover.since, now))
        decided.on_charges_transferred(shard, now)
        transfer = self._transfer(shard, to, number, mark, parts, cover, released.is_blind, now)
        if counts.count and is_standby_for(shard):
            origins = [self._ownership.origins.of(shard)]
            self._ownership.replicas.keep(to, counts, now, origins)
        if keys:
            self._engine.forget(keys)
            changed = self._changed.keys
            for key in keys if changed else ():
                changed.pop(key, None)
        self._transfers.add([shard], transfer)
        self._counters.add("keys_given", counts.count)

    def _transfer(
        self,
        shard: int,
        to: NodeId,
        number: int,
        mark: int,
        parts: list[Part],
        cover: Cover | None,
        is_blind: bool,
        now: int,
    ) -> OutgoingTransfer:
        """Build a transfer of counters in parts."""
        marks = [mark]
        if cover is not None:
            marks = [*marks, cover.mark, *sorted(cover.marks)][:MAX_ORIGINS]
        origins = merge_origins(self._ownership.origins.of(shard), marks[:1])
        if cover is None or cover.is_ended:
            return OutgoingTransfer(
                *(to, now, number, parts, ""), origins=origins, marks=tuple(marks)
            )
        ask = ""
        if is_blind:
            ask = to if to in cover.to_ask else next(iter(cover.to_ask), cover.owner)
        return OutgoingTransfer(
            *(to, now, number, parts, cover.owner, cover.is_owner_restarted, ask),
            copied_at=cover.copied_at,
            replicated_until=cover.replicated_until,
            duplicates=cover.duplicates or None,
            origins=origins,
            marks=tuple(marks),
        )

    def expire(self, now: int) -> None:
        """Forget replicas whose receiver has not requested a part for a long time."""
        self._sent.expire(now)


def _is_full(reply: Reply) -> bool:
    is_long = reply.keys >= _KEYS_PER_ANSWER or reply.size >= BYTES_PER_PART
    return is_long or reply.shards >= SHARDS_PER_ANSWER
