"""Checks that two nodes decide count once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ringfence.wire import CheckId, DecidedCheck, OutcomeRow
from tests.node.requests.deduplication.decided_hosts import (
    ALLOWED,
    DENIED,
    KEY,
    NOW,
    SECOND,
    SHARD,
    Host,
    answer,
    memory,
)


def moved(
    id_: CheckId = (1, 5, 0), *, age_ns: int = 0, row: OutcomeRow = ALLOWED, key: bytes = KEY
) -> DecidedCheck:
    return DecidedCheck(id_, key, 1, age_ns, row)


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
    owner.decide((1, 5, 0), NOW + 6)  # The request waited in the socket of the owner.

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


@pytest.mark.parametrize("later", ["sender", "receiver"])
@pytest.mark.parametrize("is_blind", [False, True])
def test_a_check_that_two_standbys_admitted_counts_once_at_the_owner(
    later: str, *, is_blind: bool
) -> None:
    owner, sender, receiver = Host("a"), Host("b"), Host("c")
    owner.ownership.start([SHARD])
    owner.decide((1, 4, 0), NOW)
    for standby in (sender, receiver):
        if is_blind:
            standby.ownership.take_over_blind([SHARD], owner.name, NOW + 1, [])
        else:
            standby.take_over_from(owner, NOW + 1)
    order = [sender, receiver] if later == "receiver" else [receiver, sender]
    for at, standby in enumerate(order):
        standby.decide((1, 5, 0), NOW + 10 * SECOND * (at + 1), cost=2)
    receiver.decide((1, 6, 0), NOW + 25 * SECOND)
    sender.give_to(receiver, NOW + 30 * SECOND)
    assert receiver.engine.used(KEY, NOW + 30 * SECOND) == 3 + (not is_blind)

    receiver.give_to(owner, NOW + 31 * SECOND)

    assert len(owner.hits(NOW + 32 * SECOND)) == 4


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


@pytest.mark.parametrize("first", ["owner", "standby"])
@pytest.mark.parametrize("is_blind", [False, True])
def test_a_check_of_both_crossed_transfers_counts_once_when_one_of_them_returns(
    first: str, *, is_blind: bool
) -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 4, 0), NOW)
    if is_blind:
        standby.ownership.take_over_blind([SHARD], owner.name, NOW + 1, [])
    else:
        standby.take_over_from(owner, NOW + 1)
    nodes = [owner, standby] if first == "owner" else [standby, owner]
    for at, node in enumerate(nodes):
        node.decide((1, 5, 0), NOW + 10 * SECOND * (at + 1))
    standby.decide((1, 6, 0), NOW + 21 * SECOND)
    at = NOW + 22 * SECOND
    from_owner, from_standby = owner.release_to(standby, at), standby.release_to(owner, at)
    owner.deliver(from_owner, standby, at)
    owner.ownership.acknowledge(standby.name, [SHARD], from_owner.groups[0].transfer_id, at)
    assert len(standby.hits(at)) == 3
    standby.deliver(from_standby, owner, at + SECOND)
    standby.ownership.acknowledge(owner.name, [SHARD], from_standby.groups[0].transfer_id, at)

    owner.give_to(standby, at + 2 * SECOND)

    assert len(standby.hits(at + 2 * SECOND)) == 3


def test_a_check_of_a_third_member_counts_once_after_a_crossed_transfer() -> None:
    """The owner's charge seemed to be in the transfer that the owner acknowledged late."""
    owner, standby, third = Host("a"), Host("b"), Host("c")
    owner.ownership.start([SHARD])
    for node in (standby, third):
        node.take_over_from(owner, NOW)
    for node in (owner, third):
        node.decide((1, 5, 0), NOW + 1)
    standby.decide((1, 6, 0), NOW + 2)
    from_owner, from_standby = (
        owner.release_to(standby, NOW + 3),
        standby.release_to(owner, NOW + 3),
    )
    owner.deliver(from_owner, standby, NOW + 4)
    standby.ownership.acknowledge(owner.name, [SHARD], from_standby.groups[0].transfer_id, NOW + 5)
    assert len(standby.hits(NOW + 5)) == 1

    third.give_to(standby, NOW + 6)

    assert len(standby.hits(NOW + 6)) == 1


@pytest.mark.parametrize("path", ["directly", "as a repeat", "as a refund"])
def test_a_charge_that_returns_has_the_age_and_the_outcome_of_its_sender(path: str) -> None:
    checks, is_refund = memory(s1_5=([answer(ALLOWED)], NOW - 50)), path == "as a refund"
    if path == "directly":
        checks.record_request(1, 5, [KEY], [1], None, NOW - 50, SECOND)
    else:
        checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 50, is_refund=is_refund)
    checks.on_charges_transferred(SHARD, NOW - 20)
    theirs = moved(age_ns=30, row=(*ALLOWED[:2], 3, *ALLOWED[3:]))
    theirs = replace(theirs, is_refund=is_refund)

    checks.merge([theirs], NOW)

    assert checks.of_shard(SHARD, NOW - 30, NOW) == [theirs]


def test_charges_that_left_and_returned_are_known_as_charged_here() -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 1, ALLOWED, NOW - 50)
    checks.on_charges_transferred(SHARD, NOW - 10)

    assert checks.merge([moved(age_ns=49)], NOW) == ([], [], [])
    assert checks.merge([moved(age_ns=49)], NOW) == ([moved(age_ns=49)], [], [])


def test_an_older_check_that_arrives_after_a_transfer_is_charged_here() -> None:
    """Another member returns the shard with the same check, so both charges are here."""
    checks = memory()
    checks.on_charges_transferred(SHARD, NOW - 10)
    checks.merge([moved(age_ns=50)], NOW)

    assert [each.id for each in checks.of_shard(SHARD, 0, NOW)] == [(1, 5, 0)]
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


def test_a_check_forwarded_before_a_takeover_takes_nothing_from_the_log() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW - SECOND)
    standby.answers[1, 5] = (answer(ALLOWED),), NOW - SECOND
    standby.take_over_from(owner, NOW)
    standby.decide((1, 6, 0), NOW + 2)

    owner.give_to(standby, NOW + 3)

    assert len(standby.hits(NOW + 4)) == 2


def test_a_check_forwarded_during_a_takeover_takes_nothing_from_the_log() -> None:
    """A unit of the log was removed for the charge, although only the owner had it."""
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    standby.take_over_from(owner, NOW)
    owner.decide((1, 5, 0), NOW + 1)
    standby.answers[1, 5] = (answer(ALLOWED),), NOW + 1
    standby.checks.record_forwarded(1, 5, None)
    standby.decide((1, 6, 0), NOW + 2)

    owner.give_to(standby, NOW + 3)

    assert len(standby.hits(NOW + 4)) == 2


def test_the_charge_of_a_forwarded_check_counts_once_after_it_has_arrived() -> None:
    checks = memory(s1_5=([answer(ALLOWED)], NOW))
    checks.record_forwarded(1, 5, [0])
    arrived = moved()

    assert checks.merge([arrived], NOW) == ([], [], [])
    assert checks.merge([arrived], NOW) == ([arrived], [], [])
