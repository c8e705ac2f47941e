"""Hypothesis strategies for messages between nodes."""

from hypothesis import strategies as st
from msgspec.structs import replace

from hashring import SHARDS
from ringfence.limiter import Limit, PackedSnapshot, Snapshot
from ringfence.limiter.outcome import Code
from ringfence.wire.bounds import (
    MAX_COST,
    MAX_KEYS,
    MAX_ORIGINS,
    MAX_PARTS,
    MAX_U64,
    MIN_KEY,
)
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
    ShardGroup,
    TakenOver,
    TransferAck,
    TransferOffer,
    WindowCounts,
)
from ringfence.wire.messages.request_columns import Source
from ringfence.wire.messages.request_messages import DecidedCheck

u64 = st.integers(0, 100) | st.integers(0, MAX_U64)
seqs = st.integers(1, MAX_U64)
texts = st.text(max_size=12)
keys = st.binary(min_size=MIN_KEY, max_size=30)
numbers = st.lists(u64, max_size=5)
pairs = st.lists(st.tuples(u64, u64), max_size=3).map(lambda rows: [n for row in rows for n in row])
shard_sets = st.sets(st.integers(0, SHARDS - 1), min_size=1, max_size=5).map(sorted)
plain = st.lists(st.dictionaries(texts, u64 | texts | st.none() | st.floats(0, 1), max_size=3))


def lists_of(columns: st.SearchStrategy, count: int) -> st.SearchStrategy:
    return st.lists(columns, min_size=count, max_size=count)


@st.composite
def counts(draw: st.DrawFn, count: int) -> PackedSnapshot:
    amounts = draw(st.sets(st.integers(0, 99), min_size=min(count, 1), max_size=min(count, 3)))
    received = st.dictionaries(texts, pairs, max_size=2)
    return PackedSnapshot.of(
        Snapshot(
            draw(lists_of(keys, count)),
            draw(lists_of(numbers, count)),
            [Limit.of_ns(amount, 10**9) for amount in sorted(amounts)],
            draw(lists_of(st.integers(0, len(amounts) - 1), count)) if count else [],
            draw(st.just([]) | lists_of(received, count)),
        )
    )


def is_check(check: DecidedCheck) -> bool:
    """Return whether a record differs from the forms in which refunds and resets are written."""
    return check.row[:2] not in ((Code.UNCHARGED, 0), (Code.NEVER, 0))


plain_checks = st.builds(
    DecidedCheck,
    st.tuples(u64, u64, st.integers(0, MAX_KEYS - 1)),
    keys,
    st.integers(0, MAX_COST),
    u64,
    st.tuples(st.integers(0, len(Code) - 1), *[u64] * 6, st.integers(0, len(Source) - 1)),
).filter(is_check)
refunds = st.builds(
    DecidedCheck,
    st.tuples(u64, u64, st.integers(0, MAX_KEYS - 1)),
    keys,
    st.integers(1, MAX_COST),
    u64,
    st.tuples(st.just(Code.ALLOWED), st.just(0), *[u64] * 5, st.integers(0, len(Source) - 1)),
    st.just(True),
)
resets = st.builds(
    lambda each, age_ns: replace(
        each,
        cost=0,
        row=(*each.row[:3], 0, *each.row[4:]),
        is_refund=False,
        is_reset=True,
        replica_age_ns=age_ns,
    ),
    refunds,
    u64,
)
decided_checks = st.lists(plain_checks | refunds | resets, max_size=3)


@st.composite
def pulled(draw: st.DrawFn) -> Pulled:
    groups = []
    free = list(range(20))
    for _ in range(draw(st.integers(0, 3))):
        chosen = draw(st.sets(st.sampled_from(free), min_size=1, max_size=3))
        free = [shard for shard in free if shard not in chosen]
        groups.append(
            ShardGroup(
                sorted(chosen),
                draw(lists_of(st.integers(0, 3), len(chosen))),
                draw(st.sampled_from(Holding)),
                draw(st.integers(1, MAX_PARTS)),
                draw(texts),
                draw(texts),
                draw(texts),
                draw(u64),
                draw(st.booleans()),
                draw(st.lists(u64, max_size=MAX_ORIGINS).map(tuple)),
                draw(st.lists(u64, max_size=MAX_ORIGINS).map(tuple)),
            )
        )
    count = sum(sum(group.sizes) for group in groups)
    fallback_counts = draw(st.just([]) | lists_of(pairs, count))
    return Pulled(draw(seqs), groups, draw(counts(count)), fallback_counts, draw(decided_checks))


origins = st.lists(u64, max_size=MAX_ORIGINS).map(tuple)


@st.composite
def copies(draw: st.DrawFn) -> Copy:
    count = draw(st.integers(0, 6))
    origin_sets = draw(st.lists(origins, max_size=3))
    indexes = lists_of(st.integers(0, len(origin_sets) - 1), count)
    which = indexes if len(origin_sets) > 1 else st.just([])
    return Copy(draw(seqs), draw(counts(count)), origin_sets, draw(which))


@st.composite
def cells(draw: st.DrawFn) -> WindowCounts:
    count = draw(st.integers(0, 6))
    return WindowCounts(
        draw(seqs), draw(texts), draw(lists_of(keys, count)), draw(lists_of(pairs, count))
    )


@st.composite
def recalled(draw: st.DrawFn) -> RecoverCountsReply:
    count = draw(st.integers(0, 6))
    columns = draw(lists_of(keys, count)), draw(lists_of(pairs, count))
    return RecoverCountsReply(draw(seqs), draw(shard_sets | st.just([])), *columns)


@st.composite
def digests(draw: st.DrawFn) -> Digest:
    shards = draw(shard_sets | st.just([]))
    return Digest(draw(seqs), draw(texts), shards, draw(lists_of(u64, len(shards))))


messages = st.one_of(
    st.builds(Exchange, seqs, st.binary(max_size=40)),
    st.builds(Exchanged, seqs, st.binary(max_size=40)),
    st.builds(Pull, seqs, shard_sets, st.integers(0, MAX_PARTS - 1), u64, st.booleans()),
    pulled(),
    copies(),
    st.builds(TransferOffer, seqs, shard_sets),
    st.builds(TransferAck, seqs, shard_sets, u64),
    cells(),
    digests(),
    st.builds(DigestMismatch, seqs, shard_sets | st.just([])),
    st.builds(RecoverCounts, seqs, shard_sets),
    recalled(),
    st.builds(AskPeers, seqs),
    st.builds(Peers, seqs, plain),
    st.builds(AskLeave, seqs),
    st.builds(Done, seqs),
    st.builds(AskTakenOver, seqs),
    st.builds(TakenOver, seqs, shard_sets | st.just([])),
)
