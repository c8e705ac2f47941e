"""Batches that are handed to a link: frames, bounds, and one answer each."""

from random import Random

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ringfence.limiter import Limit
from ringfence.peering.link.outgoing import LARGE_ROWS
from ringfence.peering.target import SHED
from ringfence.wire import (
    MAX_KEYS,
    Batch,
    ErrorCode,
    Goodbye,
    Op,
    Pong,
    Refused,
    Role,
)
from tests.ringfence.peering.link.linked_world import (
    DELAY,
    HERE,
    THERE,
    TIMEOUT,
    AskedBatch,
    ask,
    call,
    key,
    mark,
    world,
)


async def test_the_first_batch_connects_sends_a_hello_and_is_answered(autojump_clock):
    async with world() as w:
        asked = ask(w.link, "a")
        await trio.sleep(10 * DELAY)

        assert asked.is_answered
        assert [(hello.role, hello.name, hello.credential) for hello in w.peer.hellos] == [
            (Role.CLIENT, "web", b"secret")
        ]
        assert w.link.name == "n1"
        assert w.listener.reachable == [True]
        assert w.listener.versions == [(11, 22), (11, 22)]


async def test_a_link_can_be_opened_before_it_is_needed(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(10 * DELAY)

        assert w.link.is_ready
        assert w.peer.requests == []


async def test_a_lone_batch_is_sent_at_once(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        started = trio.current_time()
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.at == [pytest.approx(started + 2 * DELAY)]


async def test_batches_that_wait_together_share_a_frame(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        several = [ask(w.link, name, f"{name}2") for name in "abcdef"]
        await trio.sleep(1)

        assert all(asked.is_answered for asked in several)
        assert w.peer.rows == [2, 10]


async def test_a_large_batch_does_not_wait_for_other_tasks(autojump_clock):
    async with world(frame_interval=5 * DELAY) as w:
        w.link.open()
        await trio.sleep(1)
        started = trio.current_time()
        ask(w.link, "a")
        waiting = ask(w.link, "b")
        large = [ask(w.link, *map(str, range(LARGE_ROWS))) for _ in range(2)]
        small = ask(w.link, "c")
        await trio.sleep(1)

        assert w.peer.rows == [1, 1 + LARGE_ROWS, LARGE_ROWS, 1]
        assert [each.at for each in (waiting, *large)] == [[pytest.approx(started + 2 * DELAY)]] * 3
        assert small.at == [pytest.approx(started + 7 * DELAY)]


async def test_batches_gather_for_the_interval_after_the_previous_frame(autojump_clock):
    async with world(frame_interval=5 * DELAY) as w:
        w.link.open()
        await trio.sleep(1)
        started = trio.current_time()
        first = ask(w.link, "a")
        gathered = []
        for name in "bcd":  # The first frame is answered meanwhile.
            await trio.sleep(1.5 * DELAY)
            gathered.append(ask(w.link, name))
        await trio.sleep(1)

        assert w.peer.rows == [1, 3]
        assert first.at == [pytest.approx(started + 2 * DELAY)]
        sent_at = started + 5 * DELAY
        assert [asked.at for asked in gathered] == [[pytest.approx(sent_at + 2 * DELAY)]] * 3


async def test_a_batch_after_a_pause_leaves_at_once(autojump_clock):
    async with world(frame_interval=DELAY) as w:
        w.link.open()
        await trio.sleep(1)
        for name in "ab":
            started = trio.current_time()
            asked = ask(w.link, name)
            await trio.sleep(3 * DELAY)

            assert asked.at == [pytest.approx(started + 2 * DELAY)]


async def test_batches_gather_while_the_previous_frame_has_no_answer(autojump_clock):
    async with world(frame_interval=DELAY / 2) as w:
        w.link.open()
        await trio.sleep(1)
        started = trio.current_time()
        ask(w.link, "a")
        gathered = []
        for name in "bcd":
            await trio.sleep(DELAY / 5)
            gathered.append(ask(w.link, name))
        await trio.sleep(1)

        assert w.peer.rows == [1, 2, 1]
        sent = [started + DELAY / 2, started + DELAY / 2, started + DELAY]
        assert [asked.at[0] for asked in gathered] == [
            pytest.approx(instant + 2 * DELAY) for instant in sent
        ]


async def test_a_closed_link_sends_no_gathered_batches(autojump_clock):
    async with world(frame_interval=1.0) as w:
        w.link.open()
        await trio.sleep(2)
        several = [ask(w.link, "a")]
        await trio.sleep(DELAY / 4)
        several.append(ask(w.link, "b"))
        await trio.sleep(DELAY / 4)
        w.link.close()
        await trio.sleep(2)

        assert [asked.received for asked in several] == [[None], [None]]
        assert w.peer.rows == [1]


async def test_batches_of_different_kinds_have_separate_frames(autojump_clock):
    async with world() as w:
        several = [
            ask(w.link, "a"),
            ask(w.link, "b", op=Op.RESET),
            ask(w.link, "c", op=Op.RESET, as_standby=True),
            ask(w.link, "d", as_standby=True),
            ask(w.link, "e", as_standby=True),
        ]
        await trio.sleep(1)

        assert all(asked.is_answered for asked in several)
        assert [(request.batch.op, request.as_standby) for request in w.peer.requests] == [
            (Op.CHECK, False),
            (Op.RESET, False),
            (Op.RESET, True),
            (Op.CHECK, True),
        ]


async def test_a_frame_holds_no_more_rows_than_the_wire_allows(autojump_clock):
    async with world() as w:
        half = [f"{number}" for number in range(MAX_KEYS // 2 + 1)]
        several = [ask(w.link, *half) for _ in range(3)]
        await trio.sleep(1)

        assert all(asked.is_answered for asked in several)
        assert w.peer.rows == [len(half)] * 3


async def test_a_request_has_the_view_and_the_deadline(autojump_clock):
    async with world() as w:
        ask(w.link, "a")
        await trio.sleep(1)
        ask(w.link, "b")
        await trio.sleep(1)

        first, second = w.peer.requests
        assert (first.view, first.hops) == (11, 0)
        assert 1 <= first.deadline_ms < second.deadline_ms == round(TIMEOUT * 1000)


COLUMNS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.lists(st.integers(0, 2), min_size=3, max_size=3),
        st.booleans(),
        st.booleans(),
    ),
    min_size=2,
    max_size=6,
)
LIMITS = [Limit.of_ns(amount, 10**9) for amount in (1, 2)]


@given(COLUMNS)
@settings(max_examples=25, deadline=None)
def test_a_joined_request_has_the_rows_of_each_batch(plans):
    async def run():
        async with world() as w:
            several = []
            for place, (rows, which, is_grouped, is_aged) in enumerate(plans):
                carries = any(which[:rows])
                several.append(
                    ask(
                        w.link,
                        *[f"{place}.{row}" for row in range(rows)],
                        op=Op.REFUND,
                        groups=[rows] if is_grouped else [],
                        limits=LIMITS[place % 2 :] + LIMITS[: place % 2] if carries else [],
                        which=which[:rows] if carries else [],
                        ages_ns=[place + 1] * rows if is_aged else [],
                        slot_ids=[place + 7] * rows if is_aged else [],
                    )
                )
            await trio.sleep(1)
            assert all(asked.is_answered for asked in several)
            batches = [asked.batch for asked in several]
            sent = [request.batch for request in w.peer.requests]
            assert all_of(rows_of, sent) == all_of(rows_of, batches)
            assert all_of(runs_of, sent) == all_of(runs_of, batches)

    trio.run(run, clock=MockClock(autojump_threshold=0))


def rows_of(columns):
    return [
        (
            columns.keys[row],
            columns.costs[row],
            columns.limits[columns.which[row] - 1]
            if columns.which and columns.which[row]
            else None,
            columns.ages_ns[row] if columns.ages_ns else 0,
            columns.slot_ids[row] if columns.slot_ids else 0,
        )
        for row in range(len(columns.keys))
    ]


def runs_of(columns):
    return columns.groups or [1] * len(columns.keys)


def all_of(part, asked):
    return [each for columns in asked for each in part(columns)]


async def test_a_batch_that_cannot_be_encoded_fails_alone(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        good = [ask(w.link, "a"), ask(w.link, "b")]
        bad = AskedBatch(Batch(Op.CHECK, [key("c")], [-1]))
        w.link.ask(bad.batch, done=bad)
        good.append(ask(w.link, "d"))
        await trio.sleep(1)

        assert bad.received == [None]
        assert all(asked.is_answered for asked in good)
        assert w.link.is_ready


async def test_batches_beyond_max_waiting_are_shed_at_once(autojump_clock):
    async with world(max_waiting=3) as w:
        kept = ask(w.link, "a", "b")
        refused = ask(w.link, "c", "d")
        fits = ask(w.link, "e")
        refund = ask(w.link, "i", "j", op=Op.REFUND)

        assert refused.received == [SHED]
        await trio.sleep(1)
        assert kept.is_answered
        assert fits.is_answered
        assert refund.is_answered
        assert ask(w.link, "f", "g", "h").received == []


async def test_at_most_max_frames_are_in_flight_and_the_rest_follows(autojump_clock):
    async with world(max_frames=2) as w:
        w.link.open()
        await trio.sleep(1)
        several = []
        for number in range(6):
            several.append(ask(w.link, number, as_standby=bool(number % 2)))
            await wait_all_tasks_blocked()
        await trio.sleep(1.5 * DELAY)
        assert len(w.peer.requests) == 2

        await trio.sleep(1)
        assert all(asked.is_answered for asked in several)


async def test_a_waiting_batch_is_sent_when_a_frame_expires(autojump_clock):
    async with world(max_frames=1) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply = lambda request: Pong(10**6)
        first = ask(w.link, "a")
        await trio.sleep(TIMEOUT - 2 * DELAY)
        second = ask(w.link, "b", as_standby=True)
        w.peer.reply = w.peer.answer
        await trio.sleep(TIMEOUT)

        assert first.received == [None]
        assert second.is_answered


async def test_refusals_of_an_overloaded_member_shed_and_keep_the_member(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        refusals = []
        for code in (ErrorCode.TOO_LATE, ErrorCode.OVERLOADED, ErrorCode.NOT_HERE):
            w.peer.reply = lambda request, code=code: Refused(request.seq, code, "behind")
            refusals.append(ask(w.link, "a"))
            await trio.sleep(3 * DELAY)

        assert [each.received for each in refusals] == [[SHED], [SHED], [None]]
        assert w.link.is_ready


FAULTS = ("cut", "heal", "crash", "hang up", "goodbye", "mute", "speak", "refuse", "accept")


@given(st.integers(0, 2**32))
@example(1161)  # An answer after the member was found busy, and its frame was shed.
@settings(max_examples=30, deadline=None)
def test_under_random_faults_each_batch_gets_one_answer_and_one_count(seed):
    random = Random(seed)

    async def run():
        async with world(max_frames=4, max_waiting=200) as w:
            several, replies = [], []
            for number in range(120):
                await trio.sleep(random.choice((0, 0, DELAY / 3, DELAY, 0.1, 0.4)))
                if random.random() < 0.15:
                    await disturb(w, random.choice(FAULTS))
                names = [f"{number}.{row}" for row in range(random.choice((1, 1, 3)))]
                several.append(ask(w.link, *names, as_standby=random.random() < 0.3))
                if random.random() < 0.1:
                    replies.append(call(w.link))
            for fault in ("heal", "speak", "accept"):
                await disturb(w, fault)
            await trio.sleep(10)

            assert all(asked.is_answered in (None, True) for asked in several)
            assert all(len(reply) == 1 for reply in replies)
            assert len(set(w.peer.counted)) == len(w.peer.counted)
            await trio.sleep(60)
            last = ask(w.link, "last")
            await trio.sleep(1)
            assert last.is_answered

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def disturb(w, fault):
    peer = w.peer
    match fault:
        case "cut":
            w.network.cut(HERE, THERE)
        case "heal":
            w.network.heal(HERE, THERE)
        case "crash":
            w.crash()
            await w.serve()
        case "hang up" if peer.connections:
            peer.hang_up()
        case "goodbye" if peer.connections:
            peer.send(Goodbye("leaving"))
        case "mute":
            peer.answers = peer.answers_pings = False
        case "speak":
            peer.answers = peer.answers_pings = True
        case "refuse":
            peer.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no")
        case "accept":
            peer.refusal = None


async def check(link, name, rows):
    """Make a single check, and store its row by its name."""
    pending = link.join(key(name), 1, None)
    rows[name] = await pending.wait(None, None)


@pytest.mark.parametrize(("count", "frames"), [(3, [1, 2]), (600, [1, 512, 87])])
async def test_single_checks_share_frames_and_get_their_own_rows(autojump_clock, count, frames):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        rows = {}
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(check, w.link, str(number), rows)

        assert w.peer.rows == frames
        assert {name: row[2] for name, row in rows.items()} == {
            str(number): mark(key(number)) for number in range(count)
        }


async def test_single_checks_beyond_max_waiting_are_shed(autojump_clock):
    async with world(max_waiting=2) as w:
        first, second, third = [w.link.join(key(name), 1, None) for name in "abc"]

        assert first is second
        assert (first.is_answered, third.is_answered) == (False, True)
        await trio.sleep(1)
        assert first.is_answered
        assert w.peer.rows == [2]
        assert not w.link.join(key("d"), 1, None).is_answered


async def test_single_checks_do_not_join_a_batch_that_is_late(autojump_clock):
    async with world() as w:
        w.peer.sends_welcome = False
        first = w.link.join(key("a"), 1, 0.1)
        await trio.sleep(0.09)
        assert not first.is_late
        assert w.link.join(key("b"), 1, None) is first
        await trio.sleep(0.02)
        assert first.is_late

        assert w.link.join(key("c"), 1, None) is not first


async def test_no_single_check_joins_a_lost_or_closed_link(autojump_clock):
    async with world(serve=False) as w:
        assert w.link.join(key("a"), 1, None) is not None
        await trio.sleep(1)
        assert w.link.is_lost
        assert w.link.join(key("b"), 1, None) is None
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.link.close()
        assert w.link.join(key("a"), 1, None) is None


async def test_a_member_is_silent_since_the_first_unanswered_request(autojump_clock):
    async with world(slow_timeout=60.0) as w:
        w.link.open()
        await trio.sleep(1)
        assert w.link.silent_s == 0.0
        w.peer.answers = w.peer.answers_pings = False
        ask(w.link, "a")
        await trio.sleep(0.1)
        ask(w.link, "b")
        await trio.sleep(0.1)

        assert w.link.silent_s == pytest.approx(0.2)
        w.peer.send(Pong(10**6))
        await trio.sleep(DELAY)
        await trio.sleep(0.1)
        assert w.link.silent_s == pytest.approx(0.1)
