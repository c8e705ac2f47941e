"""Nodes without a network that remember decided checks, for tests."""

from collections.abc import Sequence

from hashring import NodeId, shard_of
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.ownership.ownership import ShardOwnership
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Algorithm, Code, Engine, EngineRule, Limit, Outcomes
from ringfence.peering.engine_choice import decide_batch
from ringfence.wire import (
    Answer,
    Batch,
    CheckId,
    Message,
    Op,
    OutcomeRow,
    Pull,
    Pulled,
    Results,
    Source,
    decode,
    encode,
)

SECOND = 1_000_000_000
PERIOD = 128 * SECOND
NOW = 1_800_000_000 * SECOND
RULE = 7
ALLOWED: OutcomeRow = (Code.ALLOWED, 10, 9, 0, 0, 0, 0, Source.OWNER)
DENIED: OutcomeRow = (Code.DENIED, 10, 0, SECOND, 0, 0, 0, Source.OWNER)


def key_of(number: int) -> bytes:
    return RULE.to_bytes(8, "big") + b"%d" % number


KEY = key_of(1)
SHARD = shard_of(KEY)


def answer(
    *rows: OutcomeRow,
    seq: int = 5,
    of_request: list[int] | None = None,
    source: Source = Source.OWNER,
) -> bytes:
    """Encode the answer to a request; `of_request` are the answered rows of the request."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return encode(
        Answer(seq, 0, 0, Results(Outcomes(*columns[:7]), [source] * len(rows)), of_request)
    )


def memory(**answers: tuple[Sequence[bytes], int]) -> DecidedChecks:
    """Return the memory of a node that answered these requests; `s1_5` is request 5 of session
    1."""

    def answers_to(session: int, seq: int) -> tuple[tuple[bytes, ...], int]:
        payloads, at = answers.get(f"s{session}_{seq}", ((), 0))
        return tuple(payloads), at

    return DecidedChecks(answers_to)


class Host:
    """Node with the counters of a shard and the memory of its decisions."""

    def __init__(self, name: str) -> None:
        self.name = NodeId(name)
        self.answers: dict[tuple[int, int], tuple[tuple[bytes, ...], int]] = {}
        """Stored answers to requests of clients, also to those that this node has forwarded."""
        self.checks = DecidedChecks(lambda *request: self.answers.get(request, ((), 0)))
        self.engine = Engine(max_keys=100)
        limit = Limit.of_ns(1000, PERIOD, algorithm=Algorithm.SLIDING_WINDOW_LOG)
        self.engine.set_rules({RULE: EngineRule(limit)})
        self.ownership = ShardOwnership(
            self.name,
            self.engine,
            Counters(),
            lambda key: PERIOD,
            lambda keys: None,
            lambda shards: None,
            max_keys=100,
            decided_checks=self.checks,
        )
        self.sender = ShardSender(
            self.ownership,
            self.engine,
            Counters(),
            first_transfer=1,
        )

    def decide(self, check_id: CheckId, at: int, cost: int = 1) -> OutcomeRow:
        """Decide like `RequestHandler`: repeat a known decision, otherwise count and record it."""
        known = self.checks.find([check_id])
        if known:
            return known[0][0]
        batch = Batch(Op.CHECK, [KEY], [cost])
        outcomes = decide_batch(self.engine, batch, at)
        self.ownership.record_decided(batch, outcomes, at)
        row = Results(outcomes, [Source.OWNER]).row(0)
        self.checks.remember(check_id, KEY, cost, row, at)
        return row

    def refund(self, refund_id: CheckId, at: int, cost: int = 1) -> None:
        """Refund units like `RequestHandler`: ignore a known refund, otherwise apply it."""
        if self.checks.find([refund_id]):
            return
        batch = Batch(Op.REFUND, [KEY], [cost])

        def count() -> Results:
            outcomes = decide_batch(self.engine, batch, at)
            self.ownership.record_decided(batch, outcomes, at)
            return Results(outcomes, [Source.OWNER])

        results, [units] = self.ownership.refunds.apply(batch, count, at)
        self.checks.remember(refund_id, KEY, units, results.row(0), at, is_refund=True)

    def take_over_from(self, owner: "Host", at: int) -> None:
        self.ownership.take_over(SHARD, owner.name, [(at, owner.engine.snapshot([KEY], at))], at)

    def give_to(self, receiver: "Host", at: int) -> None:
        """Encode the shard for a transfer and release it."""
        self.deliver(self.release_to(receiver, at), receiver, at)

    def release_to(self, receiver: "Host", at: int) -> Pulled:
        """Release the shard and return the encoded transfer."""
        self.sender.index.start()
        self.sender.index.add([KEY])
        pulled = self.sender.answer(receiver.name, Pull(1, [SHARD], 0), at, lambda shard: False)
        reply = decode(encode(pulled))
        assert isinstance(reply, Pulled)
        return reply

    def deliver(self, reply: Pulled, receiver: "Host", at: int) -> None:
        [about] = reply.groups
        counts, fallback_counts = (
            reply.counts.unpack(),
            reply.fallback_counts or [[]] * reply.counts.count,
        )
        receiver.ownership.accept(
            SHARD, about, self.name, counts, fallback_counts, at, reply.decided
        )

    def hits(self, at: int) -> list[int]:
        """Return the ages of the counted units, oldest first."""
        [state] = self.engine.snapshot([KEY], at).states
        return [
            age for age, units in zip(state[::2], state[1::2], strict=True) for _ in range(units)
        ]


def outcomes(messages: list[Message]) -> list[tuple[int, int, int]]:
    return [
        (m.seq, m.results.outcomes.codes[0], m.results.outcomes.remaining[0])
        for m in messages
        if isinstance(m, Answer)
    ]
