from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from zlib import crc32

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ringfence.errors import AccessDenied, PeerUnavailable
from ringfence.limiter import Limit, Outcomes
from ringfence.peering.link import Link, LinkSettings
from ringfence.peering.target import SHED
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import (
    MAX_KEYS,
    Answer,
    AskMembers,
    AskPeers,
    Batch,
    Copy,
    Counts,
    Digest,
    DigestMismatch,
    Done,
    ErrorCode,
    Exchange,
    Exchanged,
    Goodbye,
    Hello,
    MemberRow,
    Members,
    Op,
    Peers,
    Ping,
    Pong,
    Pull,
    Pulled,
    Refused,
    Request,
    Results,
    Role,
    TransferOffer,
    Welcome,
    decode,
    encode,
)

HERE, THERE = ("client", 1), ("node", 7101)
DELAY = 0.01
TIMEOUT = 0.5
MEMBERS = [MemberRow("n1", "node", 7101, "dc1", "", 1.0, "alive")]


class Peer:
    """A node that follows a script: it greets and answers, unless told otherwise."""

    def __init__(self, network):
        self._network = network
        self.greets = True
        self.answers = True
        self.pongs = True
        self.refusal = None
        self.reply = self.answer
        """What it says to a request."""
        self.says = None
        """What it says to other questions than those that it knows, if anything."""
        self.hellos = []
        self.requests = []
        self.questions = []
        self.connections = []
        self.closings = []
        self.remembered = {}
        self.counted = []
        """Keys of checks that it had not seen before."""

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        self.transport = self._network.transport(THERE, on_bug=raise_, accept=self.accept)
        await self.transport.run(task_status=task_status)

    def accept(self, connection):
        self.connections.append(connection)
        return Talk(self, connection)

    def send(self, message):
        """Say something out of turn on the last connection."""
        self.send_payload(encode(message))

    def send_payload(self, payload):
        self.connections[-1].send(payload)
        self.transport.flush()

    def hang_up(self):
        self.connections[-1].close(ErrorCode.INTERNAL, "a hiccup")
        self.transport.flush()

    def answer(self, request):
        if (request.seq, self.hellos[-1].session) not in self.remembered:
            self.remembered[request.seq, self.hellos[-1].session] = True
            if request.batch.op is Op.CHECK:
                self.counted += request.batch.keys
        return answer_to(request)

    @property
    def rows(self):
        """How many rows each request had."""
        return [len(request.batch.keys) for request in self.requests]


class Talk:
    """One connection to the peer."""

    def __init__(self, peer, connection):
        self.peer = peer
        self.connection = connection

    def on_open(self, connection):
        pass

    def on_close(self, code, reason):
        self.peer.closings.append(code)

    def on_message(self, payload):
        peer = self.peer
        match decode(payload):
            case Hello() as hello:
                peer.hellos.append(hello)
                if peer.refusal is not None:
                    self.connection.send(encode(peer.refusal))
                    self.connection.close(peer.refusal.code, peer.refusal.reason)
                elif peer.greets:
                    self.connection.send(encode(Welcome("n1", 11, 22)))
            case Request() as request:
                peer.requests.append(request)
                if peer.answers:
                    self.connection.send(encode(peer.reply(request)))
            case AskMembers(seq):
                if peer.answers:
                    self.connection.send(encode(Members(seq, 11, MEMBERS)))
            case Ping(seq):
                if peer.pongs:
                    self.connection.send(encode(Pong(seq)))
            case question:
                peer.questions.append(question)
                if peer.answers and peer.says is not None:
                    self.connection.send(encode(peer.says(question)))


def mark(key):
    """A number that tells whose answer it is."""
    return crc32(key)


def answer_to(request):
    count = len(request.batch.keys)
    zeros = [[0] * count for _ in range(4)]
    marks = [mark(key) for key in request.batch.keys]
    return Answer(
        request.seq,
        11,
        22,
        Results(Outcomes([0] * count, [9] * count, marks, *zeros), [0] * count),
    )


class Listener:
    def __init__(self):
        self.versions = []
        self.reachable = []

    def on_versions(self, link, view, rules):
        self.versions.append((view, rules))

    def on_reachable(self, link, reachable):
        self.reachable.append(reachable)

    def on_slots_free(self, tickets):
        raise AssertionError


class Asked:
    """One ask, and every time that it was told something."""

    def __init__(self, batch):
        self.batch = batch
        self.told = []
        self.at = []

    def __call__(self, verdicts):
        self.told.append(verdicts)
        self.at.append(trio.current_time())

    @property
    def is_answered(self):
        """Whether it was told once, and the answer is its own; None when it was given up.

        After that it may be told an answer that came late.
        """
        verdicts, *late = self.told
        if verdicts is SHED:
            assert not late
            return None
        if verdicts is None:
            assert all(each.outcomes.remaining == self._marks for each in late)
            assert len(late) < 2
            return None
        assert not late
        return verdicts.outcomes.remaining == self._marks

    @property
    def _marks(self):
        return [mark(key) for key in self.batch.keys]


def raise_(error):
    raise error


def key(name):
    return str(name).encode().rjust(8, b"\0")


def ask(link, *names, op=Op.CHECK, as_standby=False, **columns):
    batch = Batch(op, [key(name) for name in names], [1] * len(names), **columns)
    asked = Asked(batch)
    link.ask(batch, as_standby=as_standby, done=asked)
    return asked


def call(link, make=AskMembers, timeout=None):
    replies = []
    link.call(make, replies.append, timeout)
    return replies


class World:
    """A link to a peer over a network of its own."""

    def __init__(self, network, nursery, transport, limits):
        self.network = network
        self.nursery = nursery
        self.peer = Peer(network)
        self.listener = Listener()
        self.link = Link(
            transport,
            THERE,
            Hello(Role.CLIENT, "web", b"secret", 5),
            LinkSettings(answer_timeout=TIMEOUT, **{"slow_timeout": TIMEOUT} | limits),
            self.listener,
            Random(1),
            lambda: 11,
        )

    async def serve(self):
        await self.nursery.start(self.peer.run)

    def crash(self):
        """The peer is gone without a word."""
        self.network.crash(THERE)


@asynccontextmanager
async def world(*, serve=True, **limits):
    network = MemoryNetwork(Random(1), delay=DELAY)
    transport = network.transport(HERE, on_bug=raise_)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        made = World(network, nursery, transport, limits)
        if serve:
            await made.serve()
        yield made
        nursery.cancel_scope.cancel()


# -- asking and being answered ---------------------------------------------------------------------


async def test_the_first_ask_connects_says_hello_and_is_answered(autojump_clock):
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


async def test_a_lone_ask_leaves_at_once(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        begun = trio.current_time()
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.at == [pytest.approx(begun + 2 * DELAY)]


async def test_asks_that_wait_together_leave_together(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        several = [ask(w.link, name, f"{name}2") for name in "abcdef"]
        await trio.sleep(1)

        assert all(asked.is_answered for asked in several)
        assert w.peer.rows == [2, 10]


async def test_asks_of_different_kinds_travel_apart(autojump_clock):
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


async def test_a_request_names_the_view_and_how_long_it_is_waited_for(autojump_clock):
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
def test_joined_asks_ask_for_what_each_of_them_did(plans):
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
                        leases=[place + 7] * rows if is_aged else [],
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
            columns.leases[row] if columns.leases else 0,
        )
        for row in range(len(columns.keys))
    ]


def runs_of(columns):
    return columns.groups or [1] * len(columns.keys)


def all_of(part, asked):
    return [each for columns in asked for each in part(columns)]


async def test_an_ask_that_cannot_be_sent_harms_no_other(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        good = [ask(w.link, "a"), ask(w.link, "b")]
        bad = Asked(Batch(Op.CHECK, [key("c")], [-1]))
        w.link.ask(bad.batch, done=bad)
        good.append(ask(w.link, "d"))
        await trio.sleep(1)

        assert bad.told == [None]
        assert all(asked.is_answered for asked in good)
        assert w.link.is_ready


# -- bounds ----------------------------------------------------------------------------------------


async def test_more_than_may_wait_is_given_up_at_once(autojump_clock):
    async with world(max_waiting=3) as w:
        kept = ask(w.link, "a", "b")
        refused = ask(w.link, "c", "d")
        fits = ask(w.link, "e")

        assert refused.told == [SHED]
        await trio.sleep(1)
        assert kept.is_answered
        assert fits.is_answered
        assert ask(w.link, "f", "g", "h").told == []


async def test_only_so_many_frames_are_in_flight_and_the_rest_follows(autojump_clock):
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


async def test_what_waits_for_room_leaves_when_frames_are_given_up(autojump_clock):
    async with world(max_frames=1) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply = lambda request: Pong(10**6)
        first = ask(w.link, "a")
        await trio.sleep(TIMEOUT - 2 * DELAY)
        second = ask(w.link, "b", as_standby=True)
        w.peer.reply = w.peer.answer
        await trio.sleep(TIMEOUT)

        assert first.told == [None]
        assert second.is_answered


async def test_what_an_overloaded_member_refuses_is_shed_and_the_member_stays(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        refusals = []
        for code in (ErrorCode.TOO_LATE, ErrorCode.OVERLOADED, ErrorCode.NOT_HERE):
            w.peer.reply = lambda request, code=code: Refused(request.seq, code, "behind")
            refusals.append(ask(w.link, "a"))
            await trio.sleep(3 * DELAY)

        assert [each.told for each in refusals] == [[SHED], [SHED], [None]]
        assert w.link.is_ready


# -- silence ---------------------------------------------------------------------------------------


async def test_an_ask_that_is_not_answered_in_time_is_given_up(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        begun = trio.current_time()
        asked = ask(w.link, "a")
        await trio.sleep(2)

        assert asked.told == [SHED], "it answers pings"
        assert asked.at == [pytest.approx(begun + TIMEOUT)]


async def test_one_unanswered_ask_is_only_a_doubt_which_a_ping_settles(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        ask(w.link, "a")
        await trio.sleep(5)

        assert w.link.is_ready
        w.peer.answers = True
        asked = ask(w.link, "b")
        await trio.sleep(1)
        assert asked.is_answered
        assert len(w.peer.hellos) == 1


async def test_a_member_that_is_silent_twice_is_lost_and_tried_again(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = w.peer.pongs = w.peer.greets = False
        asked = ask(w.link, "a")
        await trio.sleep(3 * TIMEOUT)

        assert asked.told == [None]
        assert w.link.is_lost
        assert w.listener.reachable == [True, False]
        assert ask(w.link, "b").told == [None]
        assert "has not answered" in str(w.link.refusal)

        w.peer.answers = w.peer.pongs = w.peer.greets = True
        await trio.sleep(10)
        assert w.link.is_ready
        assert w.listener.reachable == [True, False, True]
        asked = ask(w.link, "c")
        await trio.sleep(1)
        assert asked.is_answered


async def test_a_frame_that_is_lost_among_answered_ones_is_not_held_against_the_member(
    autojump_clock,
):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply = lambda request: Pong(10**6)
        lost = ask(w.link, "lost")
        await trio.sleep(3 * DELAY)
        w.peer.reply = w.peer.answer
        for _ in range(5):
            await trio.sleep(TIMEOUT / 4)
            ask(w.link, "other")
        await trio.sleep(3)

        assert lost.told == [SHED]
        assert w.listener.reachable == [True]


async def test_asks_do_not_wait_for_a_slow_handshake(autojump_clock):
    async with world(serve=False) as w:
        w.network.cut(HERE, THERE)
        begun = trio.current_time()
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.told == [None]
        assert asked.at == [pytest.approx(begun + TIMEOUT)]
        assert w.link.is_lost
        assert ask(w.link, "b").told == [None]


async def test_a_handshake_that_succeeds_late_brings_the_member_back(autojump_clock):
    async with world() as w:
        w.network.set_delay(HERE, THERE, 0.4)
        asked = ask(w.link, "a")
        await trio.sleep(5)

        assert asked.told == [None]
        assert w.link.is_ready
        assert not w.link.is_lost


@pytest.mark.parametrize("seed", range(20))
def test_time_out_comes_once_whatever_the_clock_reads(seed):
    random = Random(seed)

    async def run():
        async with world() as w:
            w.link.open()
            await trio.sleep(1 + random.random() * 1e6)
            w.peer.answers = False
            asked = ask(w.link, "a")
            await trio.sleep(5)
            assert asked.told == [SHED]
            assert w.link.is_ready

    trio.run(run, clock=MockClock(autojump_threshold=0))


# -- a broken connection ---------------------------------------------------------------------------


async def test_what_was_in_flight_is_sent_again_under_its_number(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a", "b")
        await trio.sleep(2 * DELAY)
        w.peer.answers = True
        w.peer.hang_up()
        await trio.sleep(1)

        assert asked.is_answered
        first, again = w.peer.requests
        assert first == again
        assert [hello.session for hello in w.peer.hellos] == [5, 5]
        assert w.listener.reachable == [True, True]


async def test_asks_made_while_the_connection_is_being_mended_wait_for_it(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.hang_up()
        await trio.sleep(1.5 * DELAY)
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.is_answered


async def test_numbers_are_never_used_twice(autojump_clock):
    async with world() as w:
        for number in range(6):
            ask(w.link, number)
            await trio.sleep(1)
            if number % 2:
                w.peer.hang_up()
        numbers = [request.seq for request in w.peer.requests]

        assert len(set(numbers)) == len(numbers) == 6


async def test_a_restarted_member_gets_what_was_in_flight(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        await trio.sleep(2 * DELAY)
        w.crash()
        w.peer.answers = True
        await w.serve()
        w.link.connection.on_close(ErrorCode.IDLE, "the old one forgot us")
        await trio.sleep(1)

        assert asked.is_answered


async def test_a_member_that_nobody_runs_is_lost_at_once_and_found_when_it_starts(autojump_clock):
    async with world(serve=False) as w:
        asked = ask(w.link, "a")
        await trio.sleep(5 * DELAY)

        assert asked.told == [None]
        assert isinstance(w.link.refusal, PeerUnavailable)
        assert "no process listens at node:7101" in str(w.link.refusal)
        assert ask(w.link, "b").told == [None]
        await w.serve()
        await trio.sleep(5)
        assert w.link.is_ready
        assert w.link.refusal is None


async def test_attempts_to_reach_a_lost_member_grow_rarer(autojump_clock):
    async with world() as w:
        w.peer.refusal = Refused(0, ErrorCode.OVERLOADED, "full")
        w.link.open()
        await trio.sleep(1)
        early = len(w.peer.hellos)
        await trio.sleep(59)
        late = len(w.peer.hellos) - early

        assert 2 <= early <= 8
        assert 25 <= late <= 62


async def test_a_member_that_greets_and_hangs_up_is_not_asked_in_a_hot_loop(autojump_clock):
    async with world() as w:

        def hang_up(request):
            w.peer.hang_up()
            return Pong(1)

        w.peer.reply = hang_up
        for _ in range(20):
            ask(w.link, "a")
            await trio.sleep(0.5)

        assert len(w.peer.hellos) <= 40


async def test_a_member_that_accepts_but_never_greets_is_tried_again(autojump_clock):
    async with world() as w:
        w.peer.greets = False
        asked = ask(w.link, "a")
        await trio.sleep(4)
        assert asked.told == [None]
        assert len(w.peer.hellos) == 1
        w.peer.greets = True
        await trio.sleep(4)

        assert w.link.is_ready


# -- refusals --------------------------------------------------------------------------------------


async def test_a_credential_that_is_refused_is_an_access_denied(autojump_clock):
    async with world() as w:
        w.peer.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")
        asked = ask(w.link, "a")
        await trio.sleep(5 * DELAY)

        assert asked.told == [None]
        assert isinstance(w.link.refusal, AccessDenied)
        assert "no such token" in str(w.link.refusal)


async def test_a_credential_that_is_accepted_later_brings_the_member_back(autojump_clock):
    async with world() as w:
        w.peer.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")
        ask(w.link, "a")
        await trio.sleep(1)
        w.peer.refusal = None
        await trio.sleep(5)

        assert w.link.is_ready
        assert w.link.refusal is None


async def test_a_refused_request_is_given_up_alone(autojump_clock):
    async with world() as w:
        w.peer.reply = lambda request: (
            Refused(request.seq, ErrorCode.NOT_PERMITTED, "the token lacks the scope 'reset'")
            if request.batch.op is Op.RESET
            else answer_to(request)
        )
        refused, allowed = ask(w.link, "a", op=Op.RESET), ask(w.link, "b")
        await trio.sleep(1)

        assert [type(told) for told in refused.told] == [AccessDenied]
        assert "the token lacks the scope 'reset'" in str(refused.told[0])
        assert allowed.is_answered
        assert w.link.is_ready
        assert w.link.refusal is None


# -- goodbye ---------------------------------------------------------------------------------------


async def test_a_leaving_member_still_answers_but_gets_nothing_more(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        in_flight = ask(w.link, "a")
        await trio.sleep(2 * DELAY)
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(2 * DELAY)

        assert in_flight.told == []
        assert ask(w.link, "b").told == [None]
        assert w.listener.reachable == [True, False]
        w.peer.send(answer_to(w.peer.requests[0]))
        await trio.sleep(3 * DELAY)
        assert in_flight.is_answered
        assert w.peer.closings == [ErrorCode.OK]


async def test_what_had_not_left_before_the_goodbye_is_given_up(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(0.9 * DELAY)
        in_flight = ask(w.link, "a")
        waiting, replies = ask(w.link, "b"), call(w.link)
        w.link.connection.on_message(encode(Goodbye("maintenance")))

        assert waiting.told == [None]
        assert replies == [None]
        await trio.sleep(1)
        assert in_flight.is_answered


async def test_a_member_that_leaves_without_answering_keeps_nobody_waiting(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        in_flight = ask(w.link, "a")
        await trio.sleep(2 * DELAY)
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(TIMEOUT)

        assert in_flight.told == [None]


async def test_a_member_that_left_is_found_when_it_is_back(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.refusal = Refused(0, ErrorCode.DRAINING, "leaving")
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(1)
        assert w.link.is_lost
        w.peer.refusal = None
        await trio.sleep(5)

        assert w.link.is_ready
        assert w.listener.reachable == [True, False, True]


# -- what no member should say ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        lambda request: Members(request.seq, 11, MEMBERS),
        lambda request: Pong(request.seq),
        lambda request: answer_to(replace(request, batch=Batch(Op.CHECK, [key("x")] * 3, [1] * 3))),
        lambda request: Welcome("n1", 11, 22),
        lambda request: Ping(3),
        lambda request: Hello(Role.NODE, "n1", b"", 1),
    ],
    ids=["members", "pong", "wrong count", "second welcome", "ping", "hello"],
)
async def test_a_member_that_breaks_the_protocol_costs_one_ask_and_is_connected_to_anew(
    autojump_clock, reply
):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply = reply
        odd = ask(w.link, "a", "b")
        await trio.sleep(1.5 * DELAY)
        w.peer.reply = w.peer.answer
        await trio.sleep(2)
        good = ask(w.link, "c")
        await trio.sleep(1)

        assert odd.is_answered in (None, True)
        assert good.is_answered
        assert len(w.peer.hellos) == 2


def fields(message):
    return {name: getattr(message, name) for name in message.__dataclass_fields__}


@pytest.mark.parametrize("payload", [b"\xc1", b"\x90", b"\x91\x07"])
async def test_bytes_that_are_no_message_cost_the_connection_and_nothing_else(
    autojump_clock, payload
):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.send_payload(payload)
        await trio.sleep(1)
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.is_answered
        assert len(w.peer.hellos) == 2


async def test_an_answer_that_nobody_asked_for_is_ignored(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        ask(w.link, "a")
        await trio.sleep(1)
        w.peer.send(answer_to(w.peer.requests[0]))
        await trio.sleep(1)

        assert w.link.is_ready


# -- other questions -------------------------------------------------------------------------------


async def test_a_question_gets_its_reply(autojump_clock):
    async with world() as w:
        replies = call(w.link)
        await trio.sleep(1)

        assert [reply.members for reply in replies] == [MEMBERS]


async def test_a_question_that_nobody_answers_is_given_up(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        replies = call(w.link)
        await trio.sleep(2)

        assert replies == [None]


async def test_a_question_to_a_lost_member_is_given_up_at_once(autojump_clock):
    async with world(serve=False) as w:
        ask(w.link, "a")
        await trio.sleep(1)

        assert call(w.link) == [None]


async def test_a_question_that_is_answered_like_a_check_is_given_up(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        replies = call(w.link)
        await trio.sleep(2 * DELAY)
        request = Request(1, 0, 1, 0, False, Batch(Op.CHECK, [key("a")], [1]))
        w.peer.send(answer_to(request))
        await trio.sleep(2 * DELAY)

        assert replies == [None]


NOTHING = Counts([], [], [], [], [])


@pytest.mark.parametrize(
    ("make", "reply"),
    [
        (lambda seq: Exchange(seq, b"mine"), lambda seq: Exchanged(seq, b"theirs")),
        (lambda seq: Pull(seq, [1], 0), lambda seq: Pulled(seq, [], NOTHING, [])),
        (lambda seq: Digest(seq, "eu", [1], [2]), lambda seq: DigestMismatch(seq, [1])),
        (lambda seq: Copy(seq, NOTHING), Done),
        (AskPeers, lambda seq: Peers(seq, [])),
    ],
)
async def test_what_nodes_ask_each_other_is_answered_too(autojump_clock, make, reply):
    async with world() as w:
        w.peer.says = lambda question: reply(question.seq)
        replies = call(w.link, make)
        await trio.sleep(1)

        assert w.peer.questions == [make(1)]
        assert replies == [reply(1)]


async def test_a_question_that_is_refused_is_given_up_alone(autojump_clock):
    async with world() as w:
        w.peer.says = lambda question: Refused(question.seq, ErrorCode.OVERLOADED, "too many")
        replies, asked = call(w.link, AskPeers), ask(w.link, "a")
        await trio.sleep(1)

        assert replies == [None]
        assert asked.is_answered
        assert w.link.is_ready


async def test_a_question_may_be_waited_for_longer_than_a_check(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        patient, usual = call(w.link, AskPeers, 2.0), call(w.link, AskPeers)
        await trio.sleep(TIMEOUT + DELAY)
        assert (patient, usual) == ([], [None])

        asked = ask(w.link, "a")
        await trio.sleep(1.4 - TIMEOUT)
        w.peer.send(Peers(1, []))
        await trio.sleep(DELAY * 2)

        assert patient == [Peers(1, [])]
        assert asked.is_answered


async def test_checks_are_given_up_in_time_while_a_question_is_waited_for(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        patient = call(w.link, AskPeers, 2.0)
        began = trio.current_time()
        await trio.sleep(0.8)
        w.peer.answers = False
        asked = ask(w.link, "a")
        await trio.sleep(0.8)
        assert asked.told == [SHED]
        assert asked.at == [pytest.approx(began + 0.8 + TIMEOUT)]
        assert patient == []
        await trio.sleep(0.5)

        assert patient == [None]


async def test_a_question_that_cannot_be_sent_harms_no_other(autojump_clock):
    async with world() as w:
        w.peer.says = lambda question: Done(question.seq)
        bad = call(w.link, lambda seq: TransferOffer(seq, []))
        good = call(w.link, lambda seq: TransferOffer(seq, [1]))
        await trio.sleep(1)

        assert bad == [None]
        assert good == [Done(2)]


# -- retiring --------------------------------------------------------------------------------------


async def test_a_retired_link_waits_for_what_is_in_flight_and_closes(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        in_flight, waiting, replies = ask(w.link, "a"), ask(w.link, "b"), call(w.link)
        w.link.retire()
        assert ask(w.link, "c").told == [None]
        assert call(w.link) == [None]
        await trio.sleep(1)

        assert in_flight.is_answered
        assert waiting.is_answered
        assert [reply.members for reply in replies] == [MEMBERS]
        assert w.peer.closings == [ErrorCode.OK]
        await trio.sleep(60)
        assert len(w.peer.hellos) == 1


async def test_a_retired_link_waits_no_longer_than_ever(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        began = trio.current_time()
        w.link.retire()
        await trio.sleep(60)

        assert asked.told == [None]
        assert asked.at == [pytest.approx(began + TIMEOUT)]
        assert w.peer.closings == [ErrorCode.OK]
        assert len(w.peer.hellos) == 1


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5, 20.0])
async def test_a_link_can_be_retired_at_any_moment(autojump_clock, moment):
    async with world() as w:
        asked = ask(w.link, "a")
        await trio.sleep(moment * DELAY)
        w.link.retire()
        w.link.retire()
        await trio.sleep(60)

        assert len(asked.told) == 1
        assert len(w.peer.hellos) <= 1
        assert all(not connection.is_open for connection in w.peer.connections)


@pytest.mark.parametrize("fault", ["hang up", "crash", "goodbye", "garbage"])
async def test_a_retired_link_never_comes_back(autojump_clock, fault):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        heard = list(w.listener.reachable)
        w.link.retire()
        if fault == "garbage":
            w.peer.send_payload(b"junk")
        else:
            await disturb(w, fault)
        await trio.sleep(60)

        assert asked.told == [None]
        assert len(w.peer.hellos) == 1
        assert w.listener.reachable == heard


async def test_a_link_retired_after_the_members_goodbye_is_answered_still(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        asked = ask(w.link, "a")
        w.peer.answers = False
        await trio.sleep(1.5 * DELAY)
        w.peer.send(Goodbye("leaving"))
        await trio.sleep(1.5 * DELAY)
        w.link.retire()
        assert asked.told == []
        w.peer.send(answer_to(w.peer.requests[0]))
        await trio.sleep(60)

        assert asked.is_answered
        assert len(w.peer.hellos) == 1


# -- closing ---------------------------------------------------------------------------------------


async def test_closing_gives_up_what_waits_and_tells_the_member(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        in_flight, waiting, replies = ask(w.link, "a"), ask(w.link, "b"), call(w.link)
        w.link.close()
        await trio.sleep(1)

        assert in_flight.told == waiting.told == replies == [None]
        assert w.peer.closings == [ErrorCode.OK]
        assert ask(w.link, "c").told == [None]
        assert call(w.link) == [None]


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5])
async def test_a_link_can_be_closed_at_any_moment(autojump_clock, moment):
    async with world() as w:
        asked = ask(w.link, "a")
        await trio.sleep(moment * DELAY)
        w.link.close()
        w.link.close()
        await trio.sleep(10)

        assert len(asked.told) == 1
        assert len(w.peer.hellos) <= 1


# -- whatever happens ------------------------------------------------------------------------------


FAULTS = ("cut", "heal", "crash", "hang up", "goodbye", "mute", "speak", "refuse", "accept")


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_every_ask_is_told_exactly_once_and_counted_at_most_once_whatever_happens(seed):
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
            peer.answers = peer.pongs = False
        case "speak":
            peer.answers = peer.pongs = True
        case "refuse":
            peer.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no")
        case "accept":
            peer.refusal = None
