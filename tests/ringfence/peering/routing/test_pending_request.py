"""Results of one batch while the answers of several members arrive."""

from typing import Any

import pytest
import trio

from ringfence.errors import AccessDenied
from ringfence.limiter import Code
from ringfence.peering.routing.pending_request import PendingRequest
from ringfence.peering.target import SHED
from ringfence.wire import Batch, CheckId, Op, Results, Source, empty_results


class Member:
    """Target that records its batches, and answers when a test decides."""

    def __init__(self, first_id: CheckId | None = None, *, is_busy: bool = False) -> None:
        self.first_id = first_id
        self.is_busy = is_busy
        self.batches: list[Batch] = []
        self.dones: list[Any] = []
        self.on_rows: Any = None

    def identify(self) -> CheckId | None:
        return self.first_id

    def is_alive(self) -> bool:
        return self.is_busy

    def ask(self, batch: Batch, *, hops: int, as_standby: bool, done: Any) -> "Member":
        self.batches.append(batch)
        self.dones.append(done)
        return self


def answers(*codes: Code, source: Source = Source.OWNER) -> Results:
    results = empty_results(len(codes))
    for row, code in enumerate(codes):
        results.outcomes.codes[row], results.sources[row] = code, source
    return results


def pending(rows: int = 3) -> PendingRequest:
    keys = [b"key-%04d" % row for row in range(rows)]
    return PendingRequest(Batch(Op.CHECK, keys, [1] * rows), 0.0)


def codes(request: PendingRequest) -> list[int]:
    return request.results.outcomes.codes


def send(request: PendingRequest, *parts: tuple[list[int], Member]) -> None:
    request.send([(rows, member, False) for rows, member in parts], 0)  # type: ignore[misc]


def test_the_answer_of_one_member_is_the_result() -> None:
    request, member = pending(), Member()
    send(request, ([0, 1, 2], member))
    assert member.batches == [request.batch]
    request.collect()
    assert [*request.missing] == [0, 1, 2]

    answer = answers(Code.ALLOWED, Code.DENIED, Code.ALLOWED)
    member.dones[0](answer)
    request.collect()

    assert request.results is answer
    assert [*request.missing] == []


@pytest.mark.parametrize("is_first_early", [True, False])
def test_the_answers_of_several_members_are_joined_in_the_order_of_the_rows(
    *, is_first_early: bool
) -> None:
    request, one, other = pending(), Member(), Member()
    send(request, ([0, 2], one), ([1], other))
    assert [batch.keys for batch in one.batches] == [[b"key-0000", b"key-0002"]]

    if is_first_early:
        one.dones[0](answers(Code.DENIED, Code.NEVER))
        request.collect()
        assert [*request.missing] == [1]
        assert codes(request)[::2] == [Code.DENIED, Code.NEVER]
    else:
        one.dones[0](answers(Code.DENIED, Code.NEVER))
    other.dones[0](answers(Code.UNKNOWN_RULE))
    request.collect()

    assert codes(request) == [Code.DENIED, Code.UNKNOWN_RULE, Code.NEVER]
    assert [*request.missing] == []


def test_of_two_answers_to_a_row_the_first_is_kept() -> None:
    request, slow, standby = pending(), Member(), Member()
    send(request, ([0, 1, 2], slow))
    send(request, ([1, 2], standby))
    standby.dones[0](answers(Code.DENIED, Code.DENIED, source=Source.STANDBY))
    request.collect()
    assert [*request.missing] == [0]

    slow.dones[0](answers(Code.ALLOWED, Code.ALLOWED, Code.ALLOWED))
    request.collect()

    assert codes(request) == [Code.ALLOWED, Code.DENIED, Code.DENIED]
    assert request.results.sources == [Source.OWNER, Source.STANDBY, Source.STANDBY]
    assert [*request.missing] == []


def test_checks_that_were_sent_before_keep_their_identities() -> None:
    request, first, second, third = pending(), Member((5, 7, 0)), Member(), Member()
    send(request, ([0, 2], first))
    assert first.batches[0].ids == []
    request.requests[0].first_row = 4

    send(request, ([2, 1], second))
    send(request, ([1], third))

    assert second.batches[0].ids == [(5, 7, 5), (0, 0, 0)]
    assert third.batches[0].ids == []
    assert request.identified().ids == [(5, 7, 4), (0, 0, 0), (5, 7, 5)]
    assert request.identified(request.requests[0]).ids == [(5, 7, 4), (5, 7, 5)]
    assert pending().identified().ids == []


def test_a_refusal_and_an_overload_are_part_of_the_results() -> None:
    request, refusing, busy = pending(), Member(), Member()
    send(request, ([0], refusing), ([1, 2], busy))
    refusal = AccessDenied("the token has no scope check")

    refusing.dones[0](refusal)
    busy.dones[0](SHED)
    request.collect()

    assert request.results.refusal is refusal
    assert request.shed == {1, 2}
    assert [*request.missing] == [0, 1, 2]
    assert [*request.without_shed([0, 1, 2])] == [0]


def test_rows_of_busy_members_without_an_answer_are_shed() -> None:
    request = pending()
    busy, gone, done = Member(is_busy=True), Member(), Member(is_busy=True)
    send(request, ([0], busy), ([1], gone), ([2], done))
    done.dones[0](None)

    request.shed_rows_of_busy_members()

    assert request.shed == {0}


def test_only_rows_that_a_member_decided_are_marked_as_refunded() -> None:
    request = pending()
    request.results = answers(*[Code.ALLOWED] * 3)
    request.results.sources[:] = [Source.OWNER, Source.STANDBY, Source.LOCAL]

    request.mark_refunded([0, 1, 2])

    assert request.refunded == {0, 1}


def test_an_answer_after_the_decision_reaches_its_callback() -> None:
    request, member = pending(), Member()
    send(request, ([0, 1, 2], member))
    late: list[Results] = []
    request.requests[0].on_late = late.append

    member.dones[0](None)
    assert (late, request.requests[0].is_done) == ([], True)
    answer = answers(*[Code.ALLOWED] * 3)
    member.dones[0](answer)

    assert late == [answer]


async def test_a_wait_ends_when_its_requests_are_done_or_all_rows_have_answers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    request, slow, standby = pending(2), Member(), Member()
    send(request, ([0, 1], slow))
    send(request, ([0, 1], standby))

    with trio.move_on_after(1) as scope:
        await request.wait(request.requests[:1])
    assert scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request.wait, request.requests[:1])
        await trio.testing.wait_all_tasks_blocked()
        standby.dones[0](answers(Code.ALLOWED, Code.ALLOWED))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(request.wait, request.requests)
        await trio.testing.wait_all_tasks_blocked()
        slow.dones[0](None)


def test_checks_with_identities_of_another_process_keep_them() -> None:
    ids = [(9, 1, 0), (9, 1, 1), (9, 1, 2)]
    request = PendingRequest(Batch(Op.CHECK, [b"key-0000"] * 3, [1] * 3, ids=ids), 0.0)
    first, second = Member((5, 7, 0)), Member()

    send(request, ([0, 1, 2], first))
    send(request, ([0, 2], second))

    assert [batch.ids for batch in first.batches] == [ids]
    assert [batch.ids for batch in second.batches] == [[ids[0], ids[2]]]
    assert request.identified() is request.batch


def test_of_two_earlier_identities_of_a_check_the_first_is_repeated() -> None:
    request, first, second, third = pending(2), Member((5, 7, 0)), Member((6, 1, 3)), Member()
    send(request, ([0], first))
    send(request, ([0, 1], second))

    send(request, ([0, 1], third))

    assert third.batches[0].ids == [(5, 7, 0), (6, 1, 4)]


def test_send_returns_the_new_requests() -> None:
    request, one, other = pending(2), Member(), Member()

    sent = request.send([([0], one, False)], 0)  # type: ignore[list-item]
    later = request.send([([0], one, False), ([1], other, True)], 1)  # type: ignore[list-item]

    assert [each.rows for each in sent] == [[0]]
    assert [each.rows for each in later] == [[0], [1]]
    assert request.requests == [*sent, *later]


@pytest.mark.parametrize("parts", [[[0, 1]], [[0], [1]], [[0, 1], [0, 1]]])
def test_collected_answers_do_not_replace_later_results(parts: list[list[int]]) -> None:
    request, members = pending(2), [Member() for _ in parts]
    for rows, member in zip(parts, members, strict=True):
        send(request, (rows, member))
        member.dones[0](answers(*[Code.ALLOWED] * len(rows)))
    request.collect()
    assert codes(request) == [Code.ALLOWED] * 2

    request.results = answers(Code.DENIED, Code.DENIED, source=Source.POLICY)
    request.missing = [0, 1]
    request.collect()

    assert codes(request) == [Code.DENIED] * 2
    assert request.results.sources == [Source.POLICY] * 2


def test_an_answer_for_some_rows_leaves_the_others_missing() -> None:
    request, member = pending(), Member()
    send(request, ([1], member))
    member.dones[0](answers(Code.DENIED))

    request.collect()

    assert [*request.missing] == [0, 2]
    assert codes(request)[1] == Code.DENIED


def test_rows_that_are_not_shed_are_returned_as_they_are() -> None:
    request = pending()
    rows = [2, 0]
    assert request.without_shed(rows) == rows

    request.shed = {0}
    assert request.without_shed(rows) == [2]


def test_answers_after_a_time_out_are_collected() -> None:
    request, member = pending(), Member()
    send(request, ([0, 1, 2], member))
    member.dones[0](None)
    request.collect()
    assert [*request.missing] == [0, 1, 2]
    assert not request.shed

    member.dones[0](answers(*[Code.DENIED] * 3))
    request.collect()

    assert codes(request) == [Code.DENIED] * 3


async def test_a_wait_for_some_requests_ends_when_other_answers_contain_all_missing_rows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    request, slow, one, other = pending(), Member(), Member(), Member()
    send(request, ([0, 1, 2], slow))
    send(request, ([0], one))
    send(request, ([1], other))
    request.missing = [0, 1]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request.wait, request.requests[:1])
        one.dones[0](answers(Code.ALLOWED))
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        other.dones[0](None)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        other.dones[0](answers(Code.ALLOWED))


def test_a_request_without_a_member_is_not_shed() -> None:
    request = pending(2)
    request.add_request(request.batch, [0], None)
    send(request, ([1], Member(is_busy=True)))

    request.shed_rows_of_busy_members()

    assert request.shed == {1}


def test_a_check_in_a_shared_frame_is_identified_by_its_row_in_the_frame() -> None:
    request, first, second = pending(2), Member((5, 7, 6)), Member()
    send(request, ([0, 1], first))
    request.requests[0].first_row = 4

    send(request, ([1], second))

    assert second.batches[0].ids == [(5, 7, 11)]


def test_rows_that_a_member_answers_before_others_are_results_when_the_others_are_shed() -> None:
    request, member, other = pending(4), Member(), Member()
    send(request, ([0, 1, 3], member), ([2], other))
    member.on_rows([2, 0], answers(Code.DENIED, Code.NEVER))
    other.dones[0](answers(Code.ALLOWED))

    member.dones[0](SHED)
    request.collect()

    assert [*request.missing] == [1]
    assert [codes(request)[row] for row in (0, 2, 3)] == [Code.NEVER, Code.ALLOWED, Code.DENIED]
    first, second = request.requests
    assert [request.answered_by(row) for row in range(4)] == [first, None, second, first]


def test_a_result_that_arrived_before_others_is_kept() -> None:
    request, slow, standby = pending(2), Member(), Member()
    send(request, ([0, 1], slow))
    slow.on_rows([0], answers(Code.DENIED))
    request.collect()
    send(request, ([0, 1], standby))
    standby.dones[0](answers(Code.ALLOWED, Code.ALLOWED, source=Source.STANDBY))
    request.collect()
    slow.on_rows([1], answers(Code.DENIED))
    request.collect()

    assert codes(request) == [Code.DENIED, Code.ALLOWED]
    assert request.results.sources == [Source.OWNER, Source.STANDBY]


def test_the_last_rows_of_a_member_complete_its_answer() -> None:
    request, member = pending(), Member()
    send(request, ([0, 1, 2], member))
    late: list[Results] = []
    request.requests[0].on_late = late.append

    member.on_rows([2], answers(Code.DENIED))
    assert (late, request.requests[0].is_done) == ([], False)
    member.on_rows([0, 1], answers(Code.ALLOWED, Code.NEVER))

    assert [each.outcomes.codes for each in late] == [[Code.ALLOWED, Code.NEVER, Code.DENIED]]
    assert request.requests[0].is_done


async def test_a_wait_ends_when_the_missing_rows_are_answered_before_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    request, slow, standby = pending(2), Member(), Member()
    send(request, ([0, 1], slow))
    send(request, ([1], standby))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request.wait, request.requests[1:])
        await trio.testing.wait_all_tasks_blocked()
        slow.on_rows([0], answers(Code.ALLOWED))
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        request.missing = [0]
        slow.on_rows([0], answers(Code.ALLOWED))


def test_the_members_that_answered_many_rows_are_found_without_a_search_for_each_row() -> None:
    compared = 0

    class Row(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    count = 1000
    request, first, second = pending(count), Member(), Member()
    send(request, ([*map(Row, range(0, count, 2))], first), ([*range(1, count, 2)], second))
    for member in (first, second):
        member.dones[0](answers(*[Code.ALLOWED] * (count // 2)))
    request.collect()
    compared = 0

    found = [request.answered_by(row) for row in range(count)]

    assert found == request.requests * (count // 2)
    assert compared < 4 * count
