"""Encoding and decoding of messages between nodes. Invalid messages raise `BadMessage`.

These messages carry membership, transfers and replicas of counters, and window counts of data
centers. Clients also send two of them, `AskPeers` and `AskLeave`.
"""

from collections.abc import Callable
from itertools import islice
from operator import lt
from typing import TypeAlias, cast

from hashring import SHARDS
from ringfence.limiter.outcome import Code
from ringfence.wire.bounds import (
    MAX_COST,
    MAX_KEYS,
    MAX_MOVED,
    MAX_ORIGINS,
    MAX_PACKED,
    MAX_PARTS,
    MAX_U64,
)
from ringfence.wire.codecs.counter_codec import (
    checked_integers,
    read_keys,
    read_numbers,
    read_packed,
    read_pairs,
    write_packed,
)
from ringfence.wire.codecs.fields import bad_field, binary, flag, integer, items, plain, text
from ringfence.wire.messages.peer_messages import (
    AskLeave,
    AskPeers,
    AskTakenOver,
    Copy,
    Digest,
    DigestMismatch,
    Done,
    Exchange,
    Exchanged,
    Holding,
    Peers,
    Pull,
    Pulled,
    RecoverCounts,
    RecoverCountsReply,
    ReplicaRequest,
    ShardGroup,
    TakenOver,
    TransferAck,
    TransferOffer,
    WindowCounts,
)
from ringfence.wire.messages.request_columns import Source
from ringfence.wire.messages.request_messages import DecidedCheck

__all__ = ["PeerMessage", "PEER_READERS", "VALIDATED_WHILE_ENCODED", "encode_peer_message"]

PeerMessage: TypeAlias = (
    Exchange
    | Exchanged
    | Pull
    | Pulled
    | Copy
    | TransferOffer
    | TransferAck
    | WindowCounts
    | Digest
    | DigestMismatch
    | RecoverCounts
    | RecoverCountsReply
    | AskPeers
    | Peers
    | AskLeave
    | Done
    | AskTakenOver
    | TakenOver
)
"""Messages of this module."""

_EXCHANGE = 15
_EXCHANGED = 16
_PULL = 17
_PULLED = 18
_COPY = 19
_TRANSFER_OFFER = 20
_WINDOW_COUNTS = 21
_DIGEST = 22
_DIGEST_MISMATCH = 23
_ASK_PEERS = 24
_PEERS = 25
_ASK_LEAVE = 26
_DONE = 27
_TRANSFER_ACK = 28
_RECOVER_COUNTS = 29
_RECOVER_COUNTS_REPLY = 30
_ASK_TAKEN_OVER = 36
_TAKEN_OVER = 37

_GROUP_FIELDS = 11
_DECIDED_FIELDS = 7
_OUTCOME_NUMBERS = 8
_REFUND_MARK = (Code.UNCHARGED, 0)
"""Code and limit that mark a refund. No check of a positive cost passes a limit of 0."""
_RESET_MARK = (Code.NEVER, 0)
"""Code and limit that mark a reset of cost 0. A check of this cost always passes."""
_LAST_SOURCE = len(Source) - 1

VALIDATED_WHILE_ENCODED = (_PULLED, _COPY, _WINDOW_COUNTS, _RECOVER_COUNTS_REPLY, _DONE)
"""Frequent messages, and those with thousands of keys. Their fields are validated before they are
packed, because unpacking the result would cost about as much as packing."""


def encode_peer_message(message: PeerMessage) -> list[object]:
    """Convert a message between nodes to the list of its fields; frequent and large messages are
    also validated."""
    fields = _to_fields(message)
    if fields[0] in VALIDATED_WHILE_ENCODED:
        _, _, read = PEER_READERS[fields[0]]
        read(fields)
    return fields


def _to_fields(message: PeerMessage) -> list[object]:  # noqa: PLR0911, PLR0912 - one per message
    match message:
        case Exchange(seq, packed):
            return [_EXCHANGE, seq, packed]
        case Exchanged(seq, packed):
            return [_EXCHANGED, seq, packed]
        case Pull(seq, shards, part, transfer_id, replicas):
            return [_PULL, seq, shards, part, transfer_id, int(replicas)]
        case Pulled(seq, groups, counts, fallback_counts, decided):
            written = [
                [
                    *(group.shards, group.sizes, int(group.hold), group.parts),
                    *(group.moved_to, group.replica_at, group.taken_from),
                    *(group.transfer_id, group.is_from_before),
                    *([*group.origins], [*group.marks]),
                ]
                for group in groups
            ]
            checks = [_write_decided(check) for check in decided]
            return [_PULLED, seq, written, write_packed(counts), fallback_counts, checks]
        case Copy(seq, counts, origins, which):
            return [_COPY, seq, write_packed(counts), [[*each] for each in origins], which]
        case TransferOffer(seq, shards):
            return [_TRANSFER_OFFER, seq, shards]
        case TransferAck(seq, shards, transfer_id):
            return [_TRANSFER_ACK, seq, shards, transfer_id]
        case WindowCounts(seq, writer, keys, cells):
            return [_WINDOW_COUNTS, seq, writer, keys, cells]
        case Digest(seq, writer, shards, sums):
            return [_DIGEST, seq, writer, shards, sums]
        case DigestMismatch(seq, shards):
            return [_DIGEST_MISMATCH, seq, shards]
        case RecoverCounts(seq, shards):
            return [_RECOVER_COUNTS, seq, shards]
        case RecoverCountsReply(seq, shards, keys, cells):
            return [_RECOVER_COUNTS_REPLY, seq, shards, keys, cells]
        case AskPeers(seq):
            return [_ASK_PEERS, seq]
        case Peers(seq, rows):
            return [_PEERS, seq, rows]
        case AskLeave(seq):
            return [_ASK_LEAVE, seq]
        case Done(seq):
            return [_DONE, seq]
        case AskTakenOver(seq):
            return [_ASK_TAKEN_OVER, seq]
        case TakenOver(seq, shards):
            return [_TAKEN_OVER, seq, shards]


def _read_shards(wire: object, field: str, least: int = 1) -> list[int]:
    shards = items(wire, field, SHARDS)
    if shards and set(map(type, shards)) != {int}:
        raise bad_field(field, f"integers from 0 to {SHARDS - 1}")
    numbers = cast("list[int]", shards)
    if len(numbers) < least or not all(map(lt, numbers, islice(numbers, 1, None))):
        raise bad_field(field, f"at least {least} shards, ascending")
    if numbers and not (numbers[0] >= 0 and numbers[-1] < SHARDS):
        raise bad_field(field, f"integers from 0 to {SHARDS - 1}")
    return numbers


def _read_pull(fields: list[object]) -> Pull:
    _, seq, shards, part, transfer_id, replicas = fields
    return Pull(
        integer(seq, "Pull.seq", 1),
        _read_shards(shards, "Pull.shards"),
        integer(part, "Pull.part", 0, MAX_PARTS - 1),
        integer(transfer_id, "Pull.transfer_id"),
        ReplicaRequest(integer(replicas, "Pull.replicas", 0, max(ReplicaRequest))),
    )


def _read_pulled(fields: list[object]) -> Pulled:
    _, seq, wire, counts, fallback_counts, decided = fields
    groups = [_read_group(group) for group in items(wire, "Pulled.groups", SHARDS)]
    read = read_packed(counts, "Pulled.counts")
    if sum([sum(group.sizes) for group in groups]) != read.count:
        raise bad_field("Pulled.groups", "sizes that add up to the keys")
    shards = [shard for group in groups for shard in group.shards]
    if len(set(shards)) != len(shards):
        raise bad_field("Pulled.groups", "each shard in one group")
    fallback_count = read.count if fallback_counts else 0
    return Pulled(
        integer(seq, "Pulled.seq", 1),
        groups,
        read,
        read_pairs(fallback_counts, fallback_count, "Pulled.fallback_counts"),
        [_read_decided(check) for check in items(decided, "Pulled.decided", MAX_MOVED)],
    )


def _write_decided(check: DecidedCheck) -> list[object]:
    """Convert a decided check to the list of its fields.

    A receiver of an older release ignores a refund or a reset, because these codes mean that
    nothing was charged.
    """
    code, limit, remaining, retry, *others = check.row
    if check.is_refund or check.is_reset:
        code, limit = _REFUND_MARK if check.is_refund else _RESET_MARK
    if check.is_reset:  # A reset never asks for a retry.
        retry = check.replica_age_ns
    numbers = [int(number) for number in (code, limit, remaining, retry, *others)]
    return [*check.id, check.key, check.cost, check.age_ns, numbers]


def _read_decided(wire: object) -> DecidedCheck:
    fields = items(wire, "Pulled.decided", _DECIDED_FIELDS)
    if len(fields) != _DECIDED_FIELDS:
        raise bad_field("Pulled.decided", f"arrays of {_DECIDED_FIELDS} fields")
    session, seq, row, key, cost, age_ns, outcome = fields
    [checked] = read_keys([key], "Pulled.decided")
    numbers = checked_integers(
        items(outcome, "Pulled.decided", _OUTCOME_NUMBERS), "Pulled.decided", MAX_U64
    )
    if len(numbers) != _OUTCOME_NUMBERS or numbers[0] >= len(Code) or numbers[-1] > _LAST_SOURCE:
        raise bad_field("Pulled.decided", "outcomes of 8 numbers, from a code to a source")
    code, limit, remaining, retry, reset, delay, slot_id, source = numbers
    units = integer(cost, "Pulled.decided", 0, MAX_COST)
    is_refund = units > 0 and (code, limit) == _REFUND_MARK
    is_reset = units == 0 and (code, limit) == _RESET_MARK
    return DecidedCheck(
        (
            integer(session, "Pulled.decided"),
            integer(seq, "Pulled.decided"),
            integer(row, "Pulled.decided", 0, MAX_KEYS - 1),
        ),
        checked,
        units,
        integer(age_ns, "Pulled.decided"),
        (
            *(Code.ALLOWED if is_refund or is_reset else code, limit, remaining),
            *(0 if is_reset else retry, reset, delay, slot_id, source),
        ),
        is_refund,
        is_reset,
        retry if is_reset else 0,
    )


def _read_group(wire: object) -> ShardGroup:
    fields = items(wire, "Pulled.groups", _GROUP_FIELDS)
    if len(fields) != _GROUP_FIELDS:
        raise bad_field("Pulled.groups", f"groups of {_GROUP_FIELDS} fields")
    shards, sizes, hold, parts, *names, transfer_id, is_from_before, origins, marks = fields
    moved_to, replica_at, taken_from = names
    read = _read_shards(shards, "Pulled.shards")
    return ShardGroup(
        read,
        read_numbers(sizes, len(read), "Pulled.sizes", MAX_MOVED),
        Holding(integer(hold, "Pulled.hold", 0, len(Holding) - 1)),
        integer(parts, "Pulled.parts", 1, MAX_PARTS),
        text(moved_to, "Pulled.moved_to"),
        text(replica_at, "Pulled.replica_at"),
        text(taken_from, "Pulled.taken_from"),
        integer(transfer_id, "Pulled.transfer_id"),
        flag(is_from_before, "Pulled.is_from_before"),
        _read_origins(origins, "Pulled.origins"),
        _read_origins(marks, "Pulled.marks"),
    )


def _read_copy(fields: list[object]) -> Copy:
    _, seq, wire, rows, which = fields
    counts = read_packed(wire, "Copy.counts")
    origins = [_read_origins(row, "Copy.origins") for row in items(rows, "Copy.origins", MAX_MOVED)]
    count = counts.count if len(origins) > 1 else 0
    indexes = read_numbers(which, count, "Copy.which_origins", len(origins) - 1)
    return Copy(integer(seq, "Copy.seq", 1), counts, origins, indexes)


def _read_origins(wire: object, field: str) -> tuple[int, ...]:
    return tuple(checked_integers(items(wire, field, MAX_ORIGINS), field, MAX_U64))


def _read_transfer_offer(fields: list[object]) -> TransferOffer:
    return TransferOffer(
        integer(fields[1], "TransferOffer.seq", 1), _read_shards(fields[2], "TransferOffer.shards")
    )


def _read_transfer_ack(fields: list[object]) -> TransferAck:
    _, seq, shards, transfer_id = fields
    return TransferAck(
        integer(seq, "TransferAck.seq", 1),
        _read_shards(shards, "TransferAck.shards"),
        integer(transfer_id, "TransferAck.transfer_id"),
    )


def _read_taken_over(fields: list[object]) -> TakenOver:
    return TakenOver(
        integer(fields[1], "TakenOver.seq", 1), _read_shards(fields[2], "TakenOver.shards", 0)
    )


def _read_window_counts(fields: list[object]) -> WindowCounts:
    _, seq, writer, keys, cells = fields
    read = read_keys(keys, "WindowCounts")
    return WindowCounts(
        integer(seq, "WindowCounts.seq", 1),
        text(writer, "WindowCounts.writer"),
        read,
        read_pairs(cells, len(read), "WindowCounts.cells"),
    )


def _read_digest(fields: list[object]) -> Digest:
    _, seq, writer, shards, sums = fields
    read = _read_shards(shards, "Digest.shards", 0)
    return Digest(
        integer(seq, "Digest.seq", 1),
        text(writer, "Digest.writer"),
        read,
        read_numbers(sums, len(read), "Digest.sums"),
    )


def _read_digest_mismatch(fields: list[object]) -> DigestMismatch:
    return DigestMismatch(
        integer(fields[1], "DigestMismatch.seq", 1),
        _read_shards(fields[2], "DigestMismatch.shards", 0),
    )


def _read_recover_counts(fields: list[object]) -> RecoverCounts:
    return RecoverCounts(
        integer(fields[1], "RecoverCounts.seq", 1), _read_shards(fields[2], "RecoverCounts.shards")
    )


def _read_recover_counts_reply(fields: list[object]) -> RecoverCountsReply:
    _, seq, shards, keys, cells = fields
    read = read_keys(keys, "RecoverCountsReply")
    return RecoverCountsReply(
        integer(seq, "RecoverCountsReply.seq", 1),
        _read_shards(shards, "RecoverCountsReply.shards", 0),
        read,
        read_pairs(cells, len(read), "RecoverCountsReply.cells"),
    )


def _read_exchange(fields: list[object]) -> Exchange:
    packed = binary(fields[2], "Exchange.packed", MAX_PACKED)
    return Exchange(integer(fields[1], "Exchange.seq", 1), packed)


def _read_exchanged(fields: list[object]) -> Exchanged:
    packed = binary(fields[2], "Exchanged.packed", MAX_PACKED)
    return Exchanged(integer(fields[1], "Exchanged.seq", 1), packed)


def _read_peers(fields: list[object]) -> Peers:
    return Peers(integer(fields[1], "Peers.seq", 1), plain(fields[2], "Peers.plain"))


PEER_READERS: dict[int, tuple[type[PeerMessage], int, Callable[[list[object]], PeerMessage]]] = {
    _EXCHANGE: (Exchange, 3, _read_exchange),
    _EXCHANGED: (Exchanged, 3, _read_exchanged),
    _PULL: (Pull, 6, _read_pull),
    _PULLED: (Pulled, 6, _read_pulled),
    _COPY: (Copy, 5, _read_copy),
    _TRANSFER_OFFER: (TransferOffer, 3, _read_transfer_offer),
    _TRANSFER_ACK: (TransferAck, 4, _read_transfer_ack),
    _WINDOW_COUNTS: (WindowCounts, 5, _read_window_counts),
    _DIGEST: (Digest, 5, _read_digest),
    _DIGEST_MISMATCH: (DigestMismatch, 3, _read_digest_mismatch),
    _RECOVER_COUNTS: (RecoverCounts, 3, _read_recover_counts),
    _RECOVER_COUNTS_REPLY: (RecoverCountsReply, 5, _read_recover_counts_reply),
    _ASK_PEERS: (AskPeers, 2, lambda fields: AskPeers(integer(fields[1], "AskPeers.seq", 1))),
    _PEERS: (Peers, 3, _read_peers),
    _ASK_LEAVE: (AskLeave, 2, lambda fields: AskLeave(integer(fields[1], "AskLeave.seq", 1))),
    _DONE: (Done, 2, lambda fields: Done(integer(fields[1], "Done.seq", 1))),
    _ASK_TAKEN_OVER: (
        AskTakenOver,
        2,
        lambda fields: AskTakenOver(integer(fields[1], "AskTakenOver.seq", 1)),
    ),
    _TAKEN_OVER: (TakenOver, 3, _read_taken_over),
}
"""Message class, number of fields and reader function of each message, by type number."""
