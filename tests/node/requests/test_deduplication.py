"""Checks that arrive with one identity on several paths count once."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from hashring import NodeId, shard_of
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.ownership.ownership import ShardOwnership
from node.shards.replication import as_snapshot
from node.shards.transfers.shard_receiver import transfers_of
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Algorithm, Code, Engine, EngineRule, Limit, Outcomes
from ringfence.peering.engine_choice import decide_batch
from ringfence.wire import (
    CODE,
    Answer,
    Batch,
    CheckId,
    DecidedCheck,
    Hello,
    Message,
    Op,
    OutcomeRow,
    Pull,
    Pulled,
    Refused,
    Request,
    Results,
    Role,
    Source,
    decode,
    encode,
)
from tests.node.cluster import counter, owned
from tests.node.cluster import world as cluster_world
from tests.node.requests.sessions.test_session import (
    APP,
    check,
    remaining,
    running_node,
    with_columns,
)
from tests.node.requests.sessions.test_session import key_of as session_key_of
from tests.security.requests.test_takeover import call

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


def nothing_answered(session: int, seq: int) -> tuple[tuple[bytes, ...], int]:
    return (), 0


def memory(**answers: tuple[Sequence[bytes], int]) -> DecidedChecks:
    """Return the memory of a node that answered these requests; `s1_5` is request 5 of session
    1."""

    def answers_to(session: int, seq: int) -> tuple[tuple[bytes, ...], int]:
        payloads, at = answers.get(f"s{session}_{seq}", ((), 0))
        return tuple(payloads), at

    return DecidedChecks(answers_to)


def moved(
    id_: CheckId = (1, 5, 0), *, age_ns: int = 0, row: OutcomeRow = ALLOWED, key: bytes = KEY
) -> DecidedCheck:
    return DecidedCheck(id_, key, 1, age_ns, row)


# The memory


def test_an_outcome_is_found_by_the_identity_of_its_check_alone() -> None:
    checks = memory()
    checks.remember((1, 5, 2), KEY, 1, ALLOWED, NOW)

    assert checks.find([(2, 5, 2), (1, 6, 2), (1, 5, 3), (1, 5, 2)]) == {3: (ALLOWED, NOW)}
    assert checks.knows_request(1, 5)
    assert not checks.knows_request(1, 6)


def test_a_check_without_an_identity_is_neither_remembered_nor_found() -> None:
    checks = memory(s0_0=([answer(ALLOWED)], NOW))
    checks.remember((0, 0, 0), KEY, 1, ALLOWED, NOW)

    assert len(checks) == 0
    assert checks.find([(0, 0, 0)]) == {}


def test_direct_answers_are_found_row_by_row() -> None:
    payloads = [answer(ALLOWED, DENIED, of_request=[0, 2]), answer(ALLOWED, of_request=[1])]
    checks = memory(s1_5=(payloads, NOW))

    found = checks.find([(1, 5, row) for row in range(4)])

    assert {row: outcome[CODE] for row, (outcome, _) in found.items()} == {
        0: Code.ALLOWED,
        1: Code.ALLOWED,
        2: Code.DENIED,
    }
    assert {at for _, at in found.values()} == {NOW}


@pytest.mark.parametrize("source", [Source.POLICY, Source.LOCAL, Source.SHED])
def test_a_check_without_a_decision_has_no_outcome(source: Source) -> None:
    checks = memory(s1_5=([answer(ALLOWED, source=source)], NOW))

    assert checks.find([(1, 5, 0)]) == {}


def test_a_rejection_is_no_outcome() -> None:
    checks = memory(s1_5=([encode(Refused(5, 1, "busy"))], NOW))

    assert checks.find([(1, 5, 0)]) == {}


ids = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(0, 2))


@given(st.lists(st.tuples(ids, st.integers(0, 9))))
def test_memory_is_bounded_and_the_oldest_request_is_dropped_first(
    decided: list[tuple[CheckId, int]],
) -> None:
    most = 6
    checks = memory()
    model: dict[tuple[int, int], dict[int, OutcomeRow]] = {}
    with patch("node.requests.deduplication._MAX_ROWS", most):
        for at, (check_id, left) in enumerate(decided):
            session, seq, row = check_id
            outcome: OutcomeRow = (*ALLOWED[:2], left, *ALLOWED[3:])
            checks.remember(check_id, key_of(left), 1, outcome, at)
            model.setdefault((session, seq), {})[row] = outcome
            while sum(map(len, model.values())) > most:
                del model[next(iter(model))]

            known = {
                (*request, row): outcome
                for request in model
                for row, outcome in model[request].items()
            }
            every = [(s, q, r) for s in (1, 2) for q in range(1, 5) for r in range(3)]
            found = {every[index]: outcome for index, (outcome, _) in checks.find(every).items()}
            assert found == known
            assert len(checks) == len(known) <= most
            of_shards = [
                each
                for shard in range(10)
                for each in checks.of_shard(shard_of(key_of(shard)), 0, at)
            ]
            assert {each.id for each in of_shards} == set(known)


# Transfers with a shard


def test_only_the_checks_of_a_shard_move_with_it_keeping_their_ages() -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 3, ALLOWED, NOW - 70)
    checks.remember((1, 5, 1), key_of(2), 1, ALLOWED, NOW)

    assert shard_of(key_of(2)) != SHARD
    assert checks.of_shard(SHARD, 0, NOW) == [DecidedCheck((1, 5, 0), KEY, 3, 70, ALLOWED)]


def test_checks_from_before_a_takeover_do_not_go_back_to_the_owner() -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 1)
    checks.remember((1, 6, 0), KEY, 1, ALLOWED, NOW)

    assert [each.id for each in checks.of_shard(SHARD, NOW, NOW)] == [(1, 6, 0)]


def test_checks_past_their_repeat_time_do_not_move() -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 121 * SECOND)
    checks.remember((1, 6, 0), KEY, 1, ALLOWED, NOW - 119 * SECOND)

    assert [each.id for each in checks.of_shard(SHARD, 0, NOW)] == [(1, 6, 0)]


def test_only_the_newest_of_many_checks_of_a_shard_move() -> None:
    checks = memory(s2_1=([answer(ALLOWED)], NOW - 2), s2_2=([answer(ALLOWED, seq=2)], NOW))
    for seq in (1, 2):
        checks.record_request(2, seq, [KEY], [1], None, NOW, SECOND)
    for seq in range(1, 2501):
        checks.remember((1, seq, 0), KEY, 1, ALLOWED, NOW - 1)

    moved_checks = [each.id[:2] for each in checks.of_shard(SHARD, 0, NOW)]

    assert moved_checks == [*[(1, seq) for seq in range(502, 2501)], (2, 2)]


def test_finding_the_checks_of_a_shard_skips_other_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = memory()
    for number in range(200):
        checks.remember((1, number + 1, 0), key_of(number), 1, ALLOWED, NOW)
    looked_at: list[bytes] = []
    monkeypatch.setattr("node.requests.deduplication.shard_of", looked_at.append)

    [check] = checks.of_shard(SHARD, 0, NOW)

    assert check.key == KEY
    assert looked_at == []


# Direct checks


def test_direct_checks_move_with_their_shard_under_the_identity_of_their_request() -> None:
    answers = [answer(ALLOWED, DENIED, ALLOWED)]
    checks = memory(s1_5=(answers, NOW - 70))
    checks.record_request(1, 5, [KEY, KEY, key_of(2)], [3, 2, 1], None, NOW - 80, SECOND)

    assert checks.of_shard(SHARD, 0, NOW) == [
        DecidedCheck((1, 5, 0), KEY, 3, 70, ALLOWED),
        DecidedCheck((1, 5, 1), KEY, 2, 70, DENIED),
    ]
    assert checks.of_shard(SHARD, NOW - 69, NOW) == []


def test_direct_checks_without_a_remembered_decision_do_not_move() -> None:
    checks = memory(s1_6=([answer(ALLOWED, seq=6, source=Source.POLICY)], NOW))
    checks.record_request(1, 5, [KEY], [1], None, NOW, SECOND)
    checks.record_request(1, 6, [KEY], [1], None, NOW, SECOND)

    assert checks.of_shard(SHARD, 0, NOW) == []


def test_direct_checks_of_some_rows_of_a_request_move_under_these_rows() -> None:
    checks = memory(s1_5=([answer(ALLOWED, of_request=[3])], NOW))
    checks.record_request(1, 5, [KEY], [1], [3], NOW, SECOND)

    assert [each.id for each in checks.of_shard(SHARD, 0, NOW)] == [(1, 5, 3)]


def test_direct_checks_that_are_decided_as_repeats_too_move_once() -> None:
    checks = memory(s1_5=([answer(ALLOWED)], NOW))
    checks.record_request(1, 5, [KEY], [1], None, NOW, SECOND)
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW)

    assert [each.id for each in checks.of_shard(SHARD, 0, NOW)] == [(1, 5, 0)]


def test_direct_checks_do_not_move_after_twice_their_deadline() -> None:
    checks = memory(s1_5=([answer(ALLOWED)], NOW), s1_6=([answer(ALLOWED, seq=6)], NOW))
    checks.record_request(1, 5, [KEY], [1], None, NOW, SECOND)
    checks.record_request(1, 6, [KEY], [1], None, NOW, 2 * SECOND)

    moved_at = {
        at: [each.id[1] for each in checks.of_shard(SHARD, 0, NOW + at * SECOND)]
        for at in (2, 3, 5)
    }
    assert moved_at == {2: [5, 6], 3: [6], 5: []}


# Decisions of two nodes


def test_a_decision_of_another_node_is_remembered() -> None:
    checks = memory()

    assert checks.merge([moved(age_ns=70)], NOW) == ([], [], [])
    assert checks.find([(1, 5, 0)]) == {0: (ALLOWED, NOW - 70)}


@pytest.mark.parametrize("path", ["directly", "as a repeat"])
def test_the_earlier_of_two_charges_of_a_check_is_kept(path: str) -> None:
    if path == "directly":
        checks = memory(s1_5=([answer(ALLOWED)], NOW - 50))
    else:
        checks = memory()
        checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 50)

    later, earlier = moved(age_ns=49), moved(age_ns=51)

    assert checks.merge([later], NOW) == ([later], [], [])
    assert checks.merge([earlier], NOW) == ([], [replace(earlier, age_ns=50)], [])


@pytest.mark.parametrize(
    ("here", "there"), [(ALLOWED, DENIED), (DENIED, ALLOWED), (DENIED, DENIED)]
)
def test_a_check_denied_by_one_of_two_nodes_charges_at_most_once(
    here: OutcomeRow, there: OutcomeRow
) -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, here, NOW)

    assert checks.merge([moved(row=there)], NOW) == ([], [], [])
    assert checks.find([(1, 5, 0)]) == {0: (here, NOW)}


class Host:
    """Node with the counters of a shard and the memory of its decisions."""

    def __init__(self, name: str) -> None:
        self.name = NodeId(name)
        self.checks = DecidedChecks(nothing_answered)
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
        self.ownership.take_over(SHARD, owner.name, [(at, owner.ownership.snapshot([KEY], at))], at)

    def give_to(self, receiver: "Host", at: int) -> None:
        """Encode the shard for a transfer and release it."""
        self.deliver(self.release_to(receiver, at), receiver, at)

    def release_to(self, receiver: "Host", at: int) -> Pulled:
        """Release the shard and return the encoded transfer."""
        self.sender.index([KEY])
        pulled = self.sender.answer(receiver.name, Pull(1, [SHARD], 0), at, lambda shard: False)
        reply = decode(encode(pulled))
        assert isinstance(reply, Pulled)
        return reply

    def deliver(self, reply: Pulled, receiver: "Host", at: int) -> None:
        [about] = reply.groups
        counts, fallback_counts = (
            as_snapshot(reply.counts),
            reply.fallback_counts or [[] for _ in reply.counts.keys],
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


def test_checks_count_once_when_transfers_of_owner_and_standby_cross() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW)
    standby.take_over_from(owner, NOW + 1)
    standby.decide((1, 6, 0), NOW + 2)
    from_owner, from_standby = (
        owner.release_to(standby, NOW + 3),
        standby.release_to(owner, NOW + 3),
    )
    owner.deliver(from_owner, standby, NOW + 4)
    standby.deliver(from_standby, owner, NOW + 4)

    owner.give_to(standby, NOW + 5)

    assert len(standby.hits(NOW + 6)) == 2


def test_checks_of_a_retaken_standby_log_count_once_at_the_owner() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    standby.take_over_from(owner, NOW)
    standby.decide((1, 5, 0), NOW + 1)
    standby.release_to(owner, NOW + 3)  # The network drops the transfer.
    standby.ownership.take_over(SHARD, owner.name, [], NOW + 4)
    standby.decide((1, 6, 0), NOW + 5)
    owner.decide((1, 5, 0), NOW + 6)  # It waited in the socket of the owner.

    standby.give_to(owner, NOW + 7)

    assert len(owner.hits(NOW + 8)) == 2


def test_an_owner_keeps_the_checks_of_a_log_that_it_acknowledges_late() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    standby.take_over_from(owner, NOW)
    standby.decide((1, 5, 0), NOW + 1)
    owner.decide((1, 5, 0), NOW + 2)
    transfer = standby.release_to(owner, NOW + 3)
    standby.ownership.take_over(SHARD, owner.name, [], NOW + 4)
    standby.decide((1, 6, 0), NOW + 5)
    standby.deliver(transfer, owner, NOW + 6)
    number = transfer.groups[0].transfer_id
    standby.ownership.acknowledge(owner.name, [SHARD], number, NOW + 7)

    standby.give_to(owner, NOW + 8)

    assert len(owner.hits(NOW + 9)) == 2


def test_two_standbys_pass_the_checks_of_both_on_to_the_owner() -> None:
    owner, first, second = Host("a"), Host("b"), Host("c")
    owner.ownership.start([SHARD])
    first.take_over_from(owner, NOW)
    second.take_over_from(owner, NOW)
    second.ownership.owner_moved(SHARD, first.name, NOW + 1)
    second.decide((1, 6, 0), NOW + 1)
    first.decide((1, 5, 0), NOW + 2)
    first.decide((1, 7, 0), NOW + 2)
    owner.decide((1, 5, 0), NOW + 3)
    owner.decide((1, 6, 0), NOW + 3)
    first.give_to(second, NOW + 4)

    second.give_to(owner, NOW + 5)

    assert len(owner.hits(NOW + 6)) == 3


@pytest.mark.parametrize("is_received", [False, True])
def test_a_crossed_transfer_counts_once_whether_or_not_its_owner_receives_it(
    *, is_received: bool
) -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW)
    standby.take_over_from(owner, NOW + 1)
    standby.decide((1, 6, 0), NOW + 2)
    from_owner, from_standby = (
        owner.release_to(standby, NOW + 3),
        standby.release_to(owner, NOW + 3),
    )
    owner.deliver(from_owner, standby, NOW + 4)
    assert len(standby.hits(NOW + 4)) == 2
    if is_received:
        number = from_owner.groups[0].transfer_id
        owner.ownership.acknowledge(standby.name, [SHARD], number, NOW + 5)
        standby.deliver(from_standby, owner, NOW + 5)
        [about] = from_standby.groups
        standby.ownership.acknowledge(owner.name, [SHARD], about.transfer_id, NOW + 5)
        assert len(standby.hits(NOW + 5)) == 1
        owner.give_to(standby, NOW + 6)

    assert len(standby.hits(NOW + 6)) == 2


def test_charges_that_left_and_returned_are_known_as_charged_here() -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 50)
    checks.on_charges_transferred(SHARD, NOW - 10)

    assert checks.merge([moved(age_ns=49)], NOW) == ([], [], [])
    assert checks.merge([moved(age_ns=49)], NOW) == ([moved(age_ns=49)], [], [])


def test_the_new_holder_of_a_shard_does_not_count_a_check_again() -> None:
    sender, receiver = Host("a"), Host("b")
    sender.ownership.start([SHARD])
    outcome = sender.decide((1, 5, 0), NOW)

    sender.give_to(receiver, NOW + 1)

    assert receiver.decide((1, 5, 0), NOW + 2) == outcome
    assert receiver.hits(NOW + 2) == [2]


@pytest.mark.parametrize("first", ["owner", "standby"])
def test_a_check_admitted_by_owner_and_standby_counts_once_when_first_admitted(
    first: str,
) -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    standby.take_over_from(owner, NOW)
    nodes = [owner, standby] if first == "owner" else [standby, owner]
    for at, node in enumerate(nodes):
        node.decide((1, 5, 0), NOW + 10 * SECOND * (at + 1), cost=2)
    standby.decide((1, 6, 0), NOW + 25 * SECOND)
    owner.decide((1, 7, 0), NOW + 26 * SECOND)

    standby.give_to(owner, NOW + 30 * SECOND)

    ages_s = [round(age / SECOND) for age in owner.hits(NOW + 30 * SECOND)]
    # A standby's fallback log may record hits up to one second (1/128 of the period) too young.
    assert ages_s in ([20, 20, 4, 4], [19, 19, 4, 4])


@given(
    st.lists(
        st.tuples(st.sampled_from(["owner", "standby"]), st.integers(1, 6), st.integers(1, 3)),
        max_size=20,
    )
)
def test_each_admitted_check_counts_once_despite_repeats_on_several_nodes(
    asks: list[tuple[str, int, int]],
) -> None:
    owner, standby = Host("a"), Host("b")
    nodes = {"owner": owner, "standby": standby}
    owner.ownership.start([SHARD])
    standby.take_over_from(owner, NOW)
    costs: dict[int, int] = {}
    at = NOW
    for asked, seq, cost in asks:
        at += SECOND
        nodes[asked].decide((1, seq, 0), at, costs.setdefault(seq, cost))

    standby.give_to(owner, at + SECOND)

    assert owner.engine.used(KEY, at + SECOND) == sum(costs.values())


# Refunds


def test_a_refund_that_removed_nothing_does_not_move_with_its_shard() -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 0, ALLOWED, NOW, is_refund=True)
    checks.remember((1, 6, 0), KEY, 2, ALLOWED, NOW, is_refund=True)

    assert checks.of_shard(SHARD, 0, NOW) == [
        DecidedCheck((1, 6, 0), KEY, 2, 0, ALLOWED, is_refund=True)
    ]
    assert [*checks.find([(1, 5, 0), (1, 6, 0)])] == [0, 1]


@pytest.mark.parametrize(("here", "there", "again"), [(2, 3, 2), (3, 2, 2), (0, 2, 0)])
def test_a_refund_applied_by_two_nodes_is_undone_by_the_units_that_both_removed(
    here: int, there: int, again: int
) -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, here, ALLOWED, NOW - 50, is_refund=True)
    theirs = DecidedCheck((1, 5, 0), KEY, there, 20, ALLOWED, is_refund=True)

    expected = [replace(theirs, cost=again, age_ns=50)] if again else []
    assert checks.merge([theirs], NOW) == ([], [], expected)


def test_a_refund_known_from_another_node_is_not_applied_again() -> None:
    owner, receiver = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW, cost=3)
    owner.refund((1, 6, 0), NOW + 1)
    owner.give_to(receiver, NOW + 2)

    receiver.refund((1, 6, 0), NOW + 3)

    assert len(receiver.hits(NOW + 3)) == 2


def test_a_refund_applied_by_owner_and_standby_counts_once() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW)
    standby.take_over_from(owner, NOW + 1)
    standby.decide((1, 6, 0), NOW + 2)
    standby.refund((1, 7, 0), NOW + 3)
    owner.refund((1, 7, 0), NOW + 4)  # It waited in the socket of the owner.

    standby.give_to(owner, NOW + 5)

    assert len(owner.hits(NOW + 6)) == 1


def test_a_refund_of_a_unit_that_only_the_owner_has_is_applied_by_the_owner() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW, cost=2)
    standby.take_over_from(owner, NOW + 1)
    standby.refund((1, 7, 0), NOW + 3)  # The log of the standby has no unit.
    standby.give_to(owner, NOW + 4)

    owner.refund((1, 7, 0), NOW + 5)

    assert len(owner.hits(NOW + 6)) == 1


def test_a_refund_that_two_standbys_applied_counts_once_at_the_owner() -> None:
    owner, first, second = Host("a"), Host("b"), Host("c")
    owner.ownership.start([SHARD])
    for standby in (first, second):
        standby.take_over_from(owner, NOW)
    first.decide((1, 5, 0), NOW + 1)
    second.decide((1, 6, 0), NOW + 1)
    second.decide((1, 7, 0), NOW + 1)
    for standby in (first, second):
        standby.refund((1, 8, 0), NOW + 2)
    second.ownership.owner_moved(SHARD, first.name, NOW + 3)
    first.give_to(second, NOW + 4)
    assert second.engine.used(KEY, NOW + 4) == 2

    second.give_to(owner, NOW + 5)

    assert len(owner.hits(NOW + 6)) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["owner", "standby"]), st.integers(1, 6), st.booleans()),
        max_size=25,
    ),
    st.integers(0, 4),
)
def test_units_are_never_lost_by_refunds_on_several_nodes(
    asks: list[tuple[str, int, bool]], before: int
) -> None:
    """Each check costs 1, and each of several refunds has one of the checks."""
    owner, standby = Host("a"), Host("b")
    nodes = {"owner": owner, "standby": standby}
    owner.ownership.start([SHARD])
    for seq in range(before):
        owner.decide((2, seq + 1, 0), NOW)
    standby.take_over_from(owner, NOW)
    at, checked, refunded = NOW, set(), set()
    for asked, seq, is_refund in asks:
        at += SECOND
        if not is_refund:
            nodes[asked].decide((1, seq, 0), at)
            checked.add(seq)
        elif seq in checked:
            nodes[asked].refund((3, seq, 0), at)
            refunded.add(seq)

    standby.give_to(owner, at + SECOND)

    used = owner.engine.used(KEY, at + SECOND)
    assert before + len(checked - refunded) <= used <= before + len(checked)


# Sizes of messages


def busy(name: str, shards: int, rows: int, *, key_bytes: int) -> tuple[Host, list[int]]:
    """Return a host with this many decided checks in each of some shards."""
    host = Host(name)
    held: list[int] = []
    for number in range(shards):
        key = key_of(number).ljust(key_bytes, b".")
        held.append(shard_of(key))
        host.ownership.start(held[-1:])
        batch = Batch(Op.CHECK, [key], [1])
        host.ownership.record_decided(batch, decide_batch(host.engine, batch, NOW), NOW)
        for row in range(rows):
            host.checks.remember((2**64 - 1, 2**63 + number, row), key, 1, ALLOWED, NOW)
    return host, sorted({*held})


def test_the_checks_of_many_shards_fit_into_the_messages_that_move_them() -> None:
    host, left = busy("a", 90, 200, key_bytes=128)
    moved_checks: list[DecidedCheck] = []
    host.sender.index(host.engine.keys())
    while left:
        pulled = host.sender.answer(NodeId("b"), Pull(1, left, 0), NOW, lambda shard: False)
        reply = decode(encode(pulled))
        assert isinstance(reply, Pulled)
        moved_checks += reply.decided
        left = sorted({*left}.difference(*[group.shards for group in reply.groups]))

    assert len({check.id for check in moved_checks}) == 90 * 200


def test_the_checks_of_one_shard_move_in_several_parts_if_needed() -> None:
    host, [shard] = busy("a", 1, 1900, key_bytes=128)
    host.sender.index(host.engine.keys())

    def pull(part: int, transfer_id: int) -> Pulled:
        asked = Pull(1, [shard], part, transfer_id)
        pulled = decode(encode(host.sender.answer(NodeId("b"), asked, NOW, lambda shard: False)))
        assert isinstance(pulled, Pulled)
        return pulled

    [transfer] = transfers_of(pull(0, 0))
    while not transfer.is_whole:
        assert transfer.add(pull(transfer.next_part, transfer.about.transfer_id))

    assert transfer.about.parts == 3
    assert [check.id[2] for check in transfer.decided] == [*range(1900)]
    assert len(transfer.counts.keys) == 1


# Whole nodes


def outcomes(messages: list[Message]) -> list[tuple[int, int, int]]:
    return [
        (m.seq, m.results.outcomes.codes[0], m.results.outcomes.remaining[0])
        for m in messages
        if isinstance(m, Answer)
    ]


@pytest.mark.parametrize(
    "asks",
    [["first", "repeat"], ["repeat", "first"], ["repeat", "repeat"], ["repeat", "repeat", "first"]],
    ids=" ".join,
)
async def test_a_check_sent_on_two_paths_counts_once_with_one_outcome(
    asks: list[str], autojump_clock: object
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        gateway = await world.call(replace(APP, session=2))
        reported = []
        for number, ask in enumerate(asks):
            if ask == "first":
                reported += outcomes(await app.say(check(5)))
            else:
                repeat = with_columns(check(20 + number), ids=[(APP.session, 5, 0)])
                reported += outcomes(await gateway.say(repeat))

        assert [left for _, _, left in reported] == [4] * len(asks)
        assert {code for _, code, _ in reported} == {Code.ALLOWED}
        assert world.count("checks") == 1
        assert world.count("repeated_checks") == len(asks) - 1
        assert remaining(await app.say(check(6))) == [3]


@pytest.mark.parametrize(
    "asks",
    [["first", "repeat"], ["repeat", "first"], ["repeat", "repeat", "first"]],
    ids=" ".join,
)
async def test_a_refund_sent_on_two_paths_is_applied_once(
    asks: list[str], autojump_clock: object
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        gateway = await world.call(replace(APP, session=2))
        await app.say(check(4, cost=3))
        reported = []
        for number, ask in enumerate(asks):
            if ask == "first":
                reported += outcomes(await app.say(check(5, op=Op.REFUND)))
            else:
                repeat = with_columns(check(20 + number, op=Op.REFUND), ids=[(APP.session, 5, 0)])
                reported += outcomes(await gateway.say(repeat))

        assert [left for _, _, left in reported] == [3] * len(asks)
        assert world.count("refunds") == 1
        assert remaining(await app.say(check(6))) == [2]


async def test_a_direct_refund_moves_with_its_shard(autojump_clock: object) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        await app.say(check(5, cost=3))
        await app.say(check(6, op=Op.REFUND))
        b = await world.call(Hello(Role.NODE, "b", b"", 7))

        [pulled] = await b.say(Pull(9, [shard_of(check(5).batch.keys[0])], 0))

        assert isinstance(pulled, Pulled)
        assert sorted([(each.id, each.cost, each.is_refund) for each in pulled.decided]) == [
            ((APP.session, 5, 0), 3, False),
            ((APP.session, 6, 0), 1, True),
        ]


async def test_decided_rows_of_a_frame_are_repeated_and_other_rows_counted(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        await app.say(check(5))
        key = check(5).batch.keys[0]

        frame = with_columns(
            check(6, key, key, key), ids=[(0, 0, 0), (APP.session, 5, 0), (9, 9, 0)]
        )
        [frame_answer] = await app.say(frame)

        assert isinstance(frame_answer, Answer)
        assert frame_answer.results.outcomes.remaining == [3, 4, 2]
        assert frame_answer.results.sources == [Source.OWNER] * 3


async def test_a_direct_check_moves_with_its_shard(autojump_clock: object) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        key = check(5).batch.keys[0]
        await app.say(check(5, key, key))
        b = await world.call(Hello(Role.NODE, "b", b"", 7))

        [pulled] = await b.say(Pull(9, [shard_of(key)], 0))

        assert isinstance(pulled, Pulled)
        assert [(each.id, each.key, each.row[2]) for each in pulled.decided] == [
            ((APP.session, 5, 0), key, 4),
            ((APP.session, 5, 1), key, 3),
        ]


async def test_a_row_answered_early_moves_with_its_position_in_the_request(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        key = session_key_of("a")
        await app.say(check(5, session_key_of("b"), key))  # `b` is unreachable, so its row waits.
        b = await world.call(Hello(Role.NODE, "b", b"", 7))

        [pulled] = await b.say(Pull(9, [shard_of(key)], 0))

        assert isinstance(pulled, Pulled)
        assert [each.id for each in pulled.decided] == [(APP.session, 5, 1)]


async def test_a_check_with_a_lost_answer_counts_once_after_its_shard_moved(
    autojump_clock: MockClock,
) -> None:
    async with cluster_world("a") as w:
        client = owned(w.rules, "client", "b", names=("a", "b"))
        key = counter(w.rules, "client", client["client"])
        request = Request(5, 0, 1000, 0, False, Batch(Op.CHECK, [key], [1]))
        at_a = await call(w, "a", 900)
        reported = outcomes(await at_a.say(request))
        await w.start("b")
        await w.settle()
        at_b = await call(w, "b", 901)

        reported += outcomes(
            await at_b.say(with_columns(replace(request, seq=1), ids=[(900, 5, 0)]))
        )
        reported += outcomes(await at_b.say(replace(request, seq=2)))

        assert [left for _, _, left in reported] == [4, 4, 3]
