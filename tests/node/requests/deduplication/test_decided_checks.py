"""Memory of decided checks: identities, bounds, and moves with a shard."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashring import NodeId, shard_of
from node.shards.transfers.shard_receiver import transfers_of
from ringfence.limiter import Code
from ringfence.peering.engine_choice import decide_batch
from ringfence.wire import (
    CODE,
    Batch,
    CheckId,
    DecidedCheck,
    Op,
    OutcomeRow,
    Pull,
    Pulled,
    Refused,
    Source,
    decode,
    encode,
)
from tests.node.requests.deduplication.decided_hosts import (
    ALLOWED,
    DENIED,
    KEY,
    NOW,
    SECOND,
    SHARD,
    Host,
    answer,
    key_of,
    memory,
)

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
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 120 * SECOND - 1)
    checks.remember((1, 6, 0), KEY, 1, ALLOWED, NOW - 120 * SECOND)

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


def test_checks_whose_charges_another_member_has_do_not_move_again() -> None:
    """A refund also moves with the charges. A denied check has none."""
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 50)
    checks.remember((1, 6, 0), KEY, 1, ALLOWED, NOW - 50, is_refund=True)
    checks.remember((1, 7, 0), KEY, 1, DENIED, NOW - 50)
    checks.on_charges_transferred(SHARD, NOW - 40)
    checks.remember((1, 8, 0), KEY, 1, ALLOWED, NOW - 30)

    assert [each.id[1] for each in checks.of_shard(SHARD, 0, NOW)] == [7, 8]

    checks.merge([DecidedCheck((1, 5, 0), KEY, 1, 20, ALLOWED)], NOW)
    assert [each.id[1] for each in checks.of_shard(SHARD, 0, NOW)] == [7, 8, 5]


@pytest.mark.parametrize("ahead", [0, 1, SECOND])
def test_no_age_is_negative_although_the_clock_went_back(ahead: int) -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW + ahead)
    checks.remember((1, 6, 0), KEY, 2, ALLOWED, NOW + ahead, is_refund=True)
    of_both = [
        DecidedCheck((1, 5, 0), KEY, 1, 7, ALLOWED),
        DecidedCheck((1, 6, 0), KEY, 3, 7, ALLOWED, True),
    ]

    moved = checks.of_shard(SHARD, 0, NOW)
    ours_first, [theirs_first], [refund] = checks.merge(of_both, NOW)

    assert [check.age_ns for check in moved] == [0, 0]
    assert ours_first == []
    assert theirs_first == DecidedCheck((1, 5, 0), KEY, 1, 0, ALLOWED)
    assert refund == DecidedCheck((1, 6, 0), KEY, 2, 0, ALLOWED, True)


@pytest.mark.parametrize(
    ("age_ns", "theirs_age_ns", "is_ours_first"), [(6, 7, False), (7, 7, True), (8, 7, True)]
)
def test_the_younger_of_two_charges_of_a_check_is_removed(
    age_ns: int, theirs_age_ns: int, *, is_ours_first: bool
) -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - age_ns)
    theirs = DecidedCheck((1, 5, 0), KEY, 1, theirs_age_ns, ALLOWED)

    ours_first, theirs_first, refunds = checks.merge([theirs], NOW)

    assert ours_first == ([theirs] if is_ours_first else [])
    ours = DecidedCheck((1, 5, 0), KEY, 1, age_ns, ALLOWED)
    assert theirs_first == ([] if is_ours_first else [ours])
    assert refunds == []


@pytest.mark.parametrize(
    ("removed", "is_refund", "undone"),
    [(5, True, 3), (2, True, 2), (0, True, 0), (5, False, 0)],
)
def test_the_units_that_both_refunds_removed_are_charged_again(
    *, removed: int, is_refund: bool, undone: int
) -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, removed, ALLOWED, NOW - 9, is_refund=is_refund)
    theirs = DecidedCheck((1, 5, 0), KEY, 3, 7, ALLOWED, True)

    found = checks.merge([theirs], NOW)

    ours = DecidedCheck((1, 5, 0), KEY, undone, 9, ALLOWED, True)
    assert found == ([], [], [ours] if undone else [])


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ALLOWED, DENIED), (DENIED, ALLOWED), (DENIED, DENIED)]
)
def test_a_check_that_one_member_denied_has_one_charge(
    ours: OutcomeRow, theirs: OutcomeRow
) -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ours, NOW - 9)

    assert checks.merge([DecidedCheck((1, 5, 0), KEY, 1, 7, theirs)], NOW) == ([], [], [])
    assert checks.find([(1, 5, 0)]) == {0: (ours, NOW - 9)}


def test_the_time_of_transferred_charges_is_kept_for_120_seconds() -> None:
    other = next(key for key in map(key_of, range(99)) if shard_of(key) != SHARD)
    for late_ns, moves in ((0, []), (1, [(1, 5, 0)])):
        checks = memory()
        checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 10)
        checks.on_charges_transferred(SHARD, NOW)
        at = NOW + 120 * SECOND + late_ns
        checks.on_charges_transferred(shard_of(other), at)

        assert [check.id for check in checks.of_shard(SHARD, 0, NOW)] == moves


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


def test_direct_checks_move_although_another_check_of_their_request_was_repeated() -> None:
    checks = memory(s1_5=([answer(ALLOWED, DENIED, ALLOWED)], NOW))
    checks.record_request(1, 5, [KEY, KEY, KEY], [1, 2, 3], None, NOW, SECOND)
    checks.remember((1, 5, 1), KEY, 2, ALLOWED, NOW)

    moved = {each.id[2]: (each.cost, each.row) for each in checks.of_shard(SHARD, 0, NOW)}

    assert moved == {0: (1, ALLOWED), 1: (2, ALLOWED), 2: (3, ALLOWED)}


def test_direct_checks_do_not_move_after_twice_their_deadline() -> None:
    checks = memory(s1_5=([answer(ALLOWED)], NOW), s1_6=([answer(ALLOWED, seq=6)], NOW))
    checks.record_request(1, 5, [KEY], [1], None, NOW, SECOND)
    checks.record_request(1, 6, [KEY], [1], None, NOW, 2 * SECOND)

    moved_at = {
        at: [each.id[1] for each in checks.of_shard(SHARD, 0, NOW + at * SECOND)]
        for at in (2, 3, 5)
    }
    assert moved_at == {2: [5, 6], 3: [6], 5: []}


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


# Sizes of messages


def test_the_checks_of_many_shards_fit_into_the_messages_that_move_them() -> None:
    host, left = busy("a", 90, 200, key_bytes=128)
    moved_checks: list[DecidedCheck] = []
    host.sender.index.start()
    host.sender.index.add(host.engine.keys())
    while left:
        pulled = host.sender.answer(NodeId("b"), Pull(1, left, 0), NOW, lambda shard: False)
        reply = decode(encode(pulled))
        assert isinstance(reply, Pulled)
        moved_checks += reply.decided
        left = sorted({*left}.difference(*[group.shards for group in reply.groups]))

    assert len({check.id for check in moved_checks}) == 90 * 200


def test_the_checks_of_one_shard_move_in_several_parts_if_needed() -> None:
    host, [shard] = busy("a", 1, 1900, key_bytes=128)
    host.sender.index.start()
    host.sender.index.add(host.engine.keys())

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
