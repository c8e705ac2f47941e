"""Shard transfers to other members, stored until their receivers acknowledge them.

Decides how long a transfer and its receiver are remembered, how counters are divided into parts
that fit into messages, and the structure of an answer to a `Pull` (a request for shards).
`ownership` decides when a shard is transferred.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from hashring import NodeId
from node.context.round_timer import NEVER
from ringfence.limiter import Limit, PackedSnapshot, Snapshot
from ringfence.wire import DecidedCheck, Holding, Pulled, ShardGroup

__all__ = [
    "BYTES_PER_PART",
    "NOTHING",
    "OutgoingTransfers",
    "OutgoingTransfer",
    "Part",
    "Reply",
    "SentCopies",
    "SentCopy",
    "add_decided",
    "add_unused",
    "append_row",
    "cut",
    "size_of",
    "size_of_remote",
]

_KEYS_PER_PART = 2000
"""Most keys in one part of a transfer, which takes about four milliseconds to send or receive."""
BYTES_PER_PART = 64_000
"""Most bytes in one part of more than one key. When these are logs of hits, a part takes about 8 ms
to send."""
_ROW_BYTES = 64
"""Room for one limit, or for the counts of one data center."""
_DECIDED_PER_PART = 700
"""Most decided checks in one part of a transfer: with the longest keys below 180,000 bytes."""
_DECIDED_BYTES = 120
"""Room for one decided check beside its key."""
_NUMBER_BYTES = 9
"""Most bytes that one number takes in a message."""

_TRANSFER_KEPT_NS = 90_000_000_000
"""Time for which an unacknowledged transfer is kept: longer than the sides of a partition need to
rejoin."""
_RECEIVER_KEPT_NS = 15_000_000_000
"""Time for which the receiver of an acknowledged transfer is remembered."""
_MOVED_KEPT_NS = 3_000_000_000
"""Time for which checks go to the receiver of a transfer, before the ring names it."""
_COPY_KEPT_NS = 5_000_000_000
"""Time for which a replica in several parts is kept after the last request for a part."""
_MAX_COPIES = 64
"""Most replicas in several parts that are kept at once; above it the oldest is dropped."""
_NO_LIMIT = Limit.of_ns(0, 1)


class _About(NamedTuple):
    """Fields that all shards of one group in a transfer message (`ShardGroup`) share."""

    hold: Holding
    parts: int = 1
    moved_to: str = ""
    replica_at: str = ""
    taken_from: str = ""
    transfer_id: int = 0
    is_from_before: bool = False
    origins: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()


class Part(Struct):
    """Counters of one shard that fit into one message."""

    counts: PackedSnapshot = PackedSnapshot(b"", 0, [], [])
    fallback_counts: list[list[int]] = field(default_factory=list)
    """One row for each key; empty when no shard was taken over."""
    decided: list[DecidedCheck] = field(default_factory=list)
    """Checks of the shard that may be repeated."""


NOTHING = Part()
"""Part of all shards without counters; it must not be changed."""


class OutgoingTransfer(Struct, frozen=True):
    """One transfer of a shard to another member."""

    to: NodeId
    at: int
    number: int
    """Number of the transfer, the same for all shards of one answer."""
    parts: list[Part]
    """Empty after the acknowledgement."""
    taken_from: str
    is_from_before: bool = False
    ask: str = ""
    """Member that may have a replica, when the shard was taken over without one; else empty."""
    asked_at: int = 0
    """Instant of the last request for a part; 0 before the second request."""
    copied_at: int | None = None
    """Instant of the last replica that the owner of a covered shard sent, if any."""
    replicated_until: int = 0
    """See `Cover`."""
    duplicates: Mapping[bytes, int] | None = None
    """Most units of each key that both this replica and the log may have, if any."""
    origins: tuple[int, ...] = ()
    """Origins of the counters, see `ShardOrigins`; empty without counters."""
    marks: tuple[int, ...] = ()
    """Mark of this transfer, then those of its fallback log; empty without counters."""

    @property
    def last_request_at(self) -> int:
        """Instant of the last request for a part of this transfer."""
        return max(self.at, self.asked_at)

    @property
    def logged_since(self) -> int:
        """Instant since which the fallback log in this transfer is complete.

        The log has the units that this node admitted in place of an unreachable owner. For a shard
        of this node's own, which has no log, it is the instant of the transfer.
        """
        if not self.taken_from:
            return self.at
        ages_ns = [check.age_ns for part in self.parts for check in part.decided]
        return self.at - max(ages_ns, default=0)

    @property
    def _forgotten_at(self) -> int:
        return (
            self.last_request_at + _TRANSFER_KEPT_NS if self.parts else self.at + _RECEIVER_KEPT_NS
        )


class SentCopy(Struct, frozen=True):
    """Replica that another member fetches in several parts."""

    number: int
    parts: list[Part]
    moved_to: str
    whose: str
    asked_at: int
    origins: tuple[int, ...] = ()


class OutgoingTransfers:
    """Transfers of shards to other members, by shard."""

    def __init__(self) -> None:
        self._transfers: dict[int, OutgoingTransfer] = {}
        self._unconfirmed: dict[int, None] = {}
        self._look_at = 0
        """No transfer is forgotten before this instant."""

    @property
    def next_expiry(self) -> int:
        """Instant from which on `expire` can forget a transfer."""
        return self._look_at if self._transfers else NEVER

    def add(self, shards: Sequence[int], transfer: OutgoingTransfer) -> None:
        """Store the transfer of these shards until it is acknowledged."""
        self._transfers.update(dict.fromkeys(shards, transfer))
        self._look_at = min(self._look_at, transfer._forgotten_at)
        if transfer.parts:
            self._unconfirmed.update(dict.fromkeys(shards))
        else:
            for shard in shards:
                self._unconfirmed.pop(shard, None)

    def confirm(self, shards: Iterable[int], receiver: NodeId, number: int) -> list[int]:
        """Drop the parts of shards whose receiver acknowledged this transfer; return these
        shards."""
        by_time: dict[int, list[int]] = {}
        for shard in shards:
            transfer = self._transfers.get(shard)
            if transfer is not None and transfer.number == number and transfer.to == receiver:
                by_time.setdefault(transfer.at, []).append(shard)
        for at, confirmed in by_time.items():
            self.add(confirmed, OutgoingTransfer(receiver, at, number, [], ""))
        return [shard for confirmed in by_time.values() for shard in confirmed]

    def set_receiver(
        self, shards: Sequence[int], transfer: OutgoingTransfer, requester: NodeId, now: int
    ) -> OutgoingTransfer:
        """Set the receiver of an unacknowledged transfer of `shards`; return the new transfer.

        A second receiver replaces the first one, which gets no further part.
        """
        transfer = replace(transfer, to=requester, asked_at=now)
        self._transfers.update(dict.fromkeys(shards, transfer))
        return transfer

    def get(self, shard: int) -> OutgoingTransfer | None:
        """Return the last transfer of a shard while it is stored; None afterwards."""
        return self._transfers.get(shard)

    def moved_to(self, shard: int, now: int) -> NodeId | None:
        """Return the receiver of a shard that was transferred a moment ago; None otherwise."""
        transfer = self._transfers.get(shard)
        return transfer.to if transfer and now - transfer.at < _MOVED_KEPT_NS else None

    def unconfirmed(self) -> list[tuple[int, NodeId]]:
        """Return the shards of unacknowledged transfers, each with its receiver."""
        return [(shard, self._transfers[shard].to) for shard in self._unconfirmed]

    def is_unconfirmed(self, shard: int) -> bool:
        """Whether a shard was transferred and its receiver has not acknowledged it."""
        return shard in self._unconfirmed

    def unconfirmed_among(self, shards: Sequence[int]) -> list[int]:
        """Return those of `shards` whose transfer the receiver has not acknowledged."""
        unconfirmed = self._unconfirmed
        return [shard for shard in shards if shard in unconfirmed] if unconfirmed else []

    def receivers_of(self, shards: Sequence[int]) -> dict[int, NodeId]:
        """Return the last receivers of those of `shards` whose transfers are stored."""
        transfers = self._transfers
        return {shard: transfers[shard].to for shard in shards if shard in transfers}

    @property
    def are_confirmed(self) -> bool:
        """Whether every transfer was acknowledged by its receiver."""
        return not self._unconfirmed

    def drop(self, shards: Iterable[int]) -> None:
        """Forget the transfers of shards that this node holds again."""
        if self._transfers:
            for shard in shards:
                self._transfers.pop(shard, None)
                self._unconfirmed.pop(shard, None)

    def expire(self, now: int) -> list[int]:
        """Forget old transfers; return their shards."""
        if now <= self._look_at:
            return []
        old = [shard for shard, transfer in self._transfers.items() if now > transfer._forgotten_at]
        self.drop(old)
        known = self._transfers.values()
        self._look_at = min([each._forgotten_at for each in known], default=now)
        return old


class Reply:
    """Builder of the answer to a `Pull`, which is a request for shards."""

    def __init__(self) -> None:
        self.keys = 0
        self.shards = 0
        """Shards with counters."""
        self.size = 0
        """Estimated bytes of the answer."""
        self._groups: dict[_About, list[tuple[Sequence[int], Part]]] = {}

    def add_transfer(self, shards: Sequence[int], transfer: OutgoingTransfer, part: int) -> None:
        """Add one part of a transfer to the answer, for each of its shards."""
        about = _About(
            Holding.HELD,
            len(transfer.parts),
            replica_at=transfer.ask,
            taken_from=transfer.taken_from,
            transfer_id=transfer.number,
            is_from_before=transfer.is_from_before,
            origins=transfer.origins,
            marks=transfer.marks,
        )
        self._add(about, shards, transfer.parts[part])

    def add_copy(self, shard: int, sent: SentCopy, part: int) -> None:
        """Add one part of a replica to the answer, for a shard that another member holds."""
        about = _About(
            Holding.COPY,
            len(sent.parts),
            sent.moved_to,
            taken_from=sent.whose,
            transfer_id=sent.number,
            origins=sent.origins,
        )
        self._add(about, [shard], sent.parts[part])

    def add_nothing(self, shards: Sequence[int], moved_to: str) -> None:
        """Add shards of which this node has no counters to the answer, with their receiver if they
        were transferred."""
        if shards:
            self._add(_About(Holding.NOTHING, moved_to=moved_to), shards, NOTHING)

    def pulled(self, seq: int) -> Pulled:
        """Build the answer message `Pulled` from the added shards."""
        parts: list[Part] = []
        groups = []
        for about, added in self._groups.items():
            by_shard = {shard: part for some, part in added for shard in some}
            shards = sorted(by_shard)
            found = [by_shard[shard] for shard in shards]
            sizes = [0 if part is NOTHING else part.counts.count for part in found]
            groups.append(ShardGroup(shards, sizes, *about))
            parts += [part for part in found if part is not NOTHING]
        rows: list[list[int]] = []
        for part in parts:
            rows += part.fallback_counts or [[]] * part.counts.count
        counts = PackedSnapshot.joined([part.counts for part in parts])
        decided = [check for part in parts for check in part.decided]
        return Pulled(seq, groups, counts, rows if any(rows) else [], decided)

    def _add(self, about: _About, shards: Sequence[int], part: Part) -> None:
        self._groups.setdefault(about, []).append((shards, part))
        if part is NOTHING:
            return
        self.shards += len(shards)
        self.keys += part.counts.count
        if part.counts.count:
            self.size += size_of(part.counts, part.fallback_counts)
        self.size += sum([_DECIDED_BYTES + len(check.key) for check in part.decided])


class SentCopies:
    """Replicas that are sent in several parts, unchanged since the request for the first part."""

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[NodeId, int], SentCopy] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, requester: NodeId, shard: int, sent: SentCopy) -> None:
        """Store a replica until its receiver has had time to fetch it."""
        self._sent[requester, shard] = sent
        self._sent.move_to_end((requester, shard))
        if len(self._sent) > _MAX_COPIES:
            self._sent.popitem(last=False)

    def get(self, requester: NodeId, shard: int, number: int, now: int) -> SentCopy | None:
        """Return the replica with this number while a member is fetching it."""
        sent = self._sent.get((requester, shard))
        if sent is None or sent.number != number:
            return None
        self.add(requester, shard, replace(sent, asked_at=now))
        return sent

    def expire(self, now: int) -> None:
        """Forget replicas whose receiver has not requested a part for a long time."""
        while self._sent:
            first = next(iter(self._sent))
            if now - self._sent[first].asked_at <= _COPY_KEPT_NS:
                break
            del self._sent[first]


def size_of(counts: PackedSnapshot, rows: Sequence[list[int]] = ()) -> int:
    """Return an upper estimate of the bytes that counters with these fallback counts need in a
    message."""
    size = len(counts.rows) + _ROW_BYTES * len(counts.limits)
    size += _NUMBER_BYTES * sum(map(len, rows))
    return size + size_of_remote(counts.remote_counts)


def size_of_remote(remote_counts: Sequence[dict[str, list[int]]]) -> int:
    """Return an upper estimate of the bytes that counts of other data centers need in a message."""
    return sum([_remote_size(of_key) for of_key in remote_counts if of_key])


def cut(counts: PackedSnapshot, rows: list[list[int]], least: int = 1) -> list[Part]:
    """Divide the counters of one shard, and their fallback counts if there are any, into at least
    `least` parts, each of which fits into a message.

    With fewer keys than parts, some parts are empty. A shard without keys is one part.
    """
    if counts.count < 2 or (least == 1 and _fits_into_part(counts, rows)):
        empty = [Part() for _ in range(least - 1)] if counts.count else []
        return [*empty, Part(counts, rows)]
    half, columns = counts.count // 2, counts.unpack()
    parts: list[Part] = []
    for start, stop, fewest in ((0, half, least - least // 2), (half, counts.count, least // 2)):
        piece = Snapshot([], [], [], [], [])
        for at in range(start, stop):
            append_row(piece, columns, at)
        parts += cut(PackedSnapshot.of(piece), rows[start:stop], max(1, fewest))
    return parts


def _fits_into_part(counts: PackedSnapshot, rows: Sequence[list[int]]) -> bool:
    return counts.count <= _KEYS_PER_PART and size_of(counts, rows) <= BYTES_PER_PART


def add_decided(parts: list[Part], decided: Sequence[DecidedCheck]) -> None:
    """Distribute decided checks, for deduplication, among the parts of their shard's transfer; add
    parts when needed."""
    for number, start in enumerate(range(0, len(decided), _DECIDED_PER_PART)):
        if number == len(parts):
            parts.append(Part())
        parts[number].decided += decided[start : start + _DECIDED_PER_PART]


def _remote_size(remote_counts: dict[str, list[int]]) -> int:
    return sum([_ROW_BYTES + 4 * len(n) + _NUMBER_BYTES * len(c) for n, c in remote_counts.items()])


def append_row(target: Snapshot, source: Snapshot, at: int) -> None:
    """Append one row (a key and its counter) of a snapshot to another snapshot."""
    limit = source.limits[source.which[at]]
    if limit not in target.limits:
        target.limits.append(limit)
    target.keys.append(source.keys[at])
    target.states.append(source.states[at])
    target.which.append(target.limits.index(limit))
    target.remote_counts.append(source.remote_counts[at] if source.remote_counts else {})


def add_unused(counts: Snapshot, keys: Iterable[bytes]) -> None:
    """Add those of `keys` that have no counter to a snapshot, with the empty state of an unused
    key."""
    known = set(counts.keys)
    unused = [key for key in keys if key not in known]
    if unused:
        counts.limits.append(_NO_LIMIT)
        if counts.remote_counts:
            counts.remote_counts.extend({} for _ in unused)
        counts.keys.extend(unused)
        counts.states.extend([] for _ in unused)
        counts.which.extend([len(counts.limits) - 1] * len(unused))
