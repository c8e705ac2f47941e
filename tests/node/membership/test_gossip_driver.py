"""Driver of the membership core: timers, datagrams, exchanges and internal errors."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from gossip import (
    Ack,
    Changed,
    Conflict,
    Gossip,
    Membership,
    Message,
    Ping,
    Record,
    Settings,
    Status,
    pack_records,
    unpack_records,
)
from gossip.datagrams.seal import Seal
from node.context.containment import Containment
from node.membership.gossip_driver import GossipDriver, NameInUse, SealedDatagrams
from ringfence.transport.interface import Address
from ringfence.wire import Exchange, Exchanged, Pong
from tests.node.membership.fake_transport import (
    BOOT,
    KEY,
    ME,
    NS,
    FakeClock,
    FakeLinks,
    FakeTransport,
)

B = replace(ME, name="b", host="host-b")
C = replace(ME, name="c", host="host-c")


class Node(FakeTransport):
    """Gossip driver of the member `me`, with its transport."""

    def __init__(self, *others: Record) -> None:
        super().__init__()
        self.changes: list[list[str]] = []
        """Names of the changed members in each report of changes."""
        self.change_errors: list[Exception] = []
        """Errors of the next reports of changes."""
        self.conflicts: list[Conflict] = []
        self.stalls_noticed = 0
        self._links = FakeLinks()
        self.links = self._links.by_address
        self.others = Seal([KEY], "c", 2)
        self.membership = Membership(ME, Settings.lan(), Random(1), 0, FakeClock())
        self.driver = GossipDriver(
            self.membership,
            SealedDatagrams(Seal([KEY], "c", 1)),
            cast(Any, self),
            cast(Any, self._links),
            self.uptime,
            self._on_change,
            self.conflicts.append,
            self._notice_stall,
            Containment(logging.getLogger("test"), lambda: 0.0),
        )
        if others:
            self.driver.found(others)
            self.changes.clear()

    def _on_change(self, changes: Sequence[Changed]) -> None:
        self.changes.append([change.after.name for change in changes])
        if self.change_errors:
            raise self.change_errors.pop()

    def _notice_stall(self) -> None:
        self.stalls_noticed += 1

    def receive(self, message: Message, source: Address = B.address) -> None:
        self.receive_bytes(SealedDatagrams(self.others).pack(message), source)

    def receive_bytes(self, datagram: bytes, source: Address = B.address) -> None:
        assert self.handler is not None
        self.handler(datagram, source)

    def deadline(self) -> float:
        return BOOT + self.membership.next_deadline() / NS


def started(*others: Record) -> Node:
    node = Node(*others)
    node.driver.start()
    return node


def test_the_timer_is_set_to_the_next_deadline_and_moved_only_when_that_changes() -> None:
    node = started()
    first = node.next_timer
    assert first.at == pytest.approx(node.deadline())

    node.receive(Gossip("b", 1))  # Changes no deadline.
    assert node.next_timer is first
    node.receive(Gossip("b", 1, (B,)))  # The record is disseminated at once.

    assert node.next_timer is not first
    assert node.next_timer.at == pytest.approx(node.deadline()) == pytest.approx(BOOT)


def test_each_timer_runs_the_core_and_sets_the_next_one() -> None:
    node = started(B)

    while not any(isinstance(message, Ping) for message, _ in node.sent):
        node.run_timer()

    assert node.sent[-1][1] == B.address
    assert node.next_timer.at == pytest.approx(node.deadline())


@pytest.mark.parametrize("is_started", [True, False])
def test_a_stopped_driver_has_no_timer_and_sends_nothing(*, is_started: bool) -> None:
    node = started(B) if is_started else Node(B)

    node.driver.stop()
    node.driver.leave()
    node.driver.join([C.address])

    assert all(timer.is_cancelled for timer in node.timers)
    assert (node.sent, node.changes, node.links) == ([], [], {})


def test_a_driver_without_a_timer_can_be_stopped() -> None:
    node = Node()

    node.driver.stop()

    assert node.timers == []


def test_the_start_reports_no_change() -> None:
    assert started().changes == []


def test_a_datagram_of_a_member_is_answered_and_reported() -> None:
    node = started(B)

    node.receive(Ping("b", 1, 5, "me", 0, (C,)), ("elsewhere", 9))

    [(answer, to)] = node.sent
    assert isinstance(answer, Ack)
    assert (answer.seq, to) == (5, ("elsewhere", 9))
    assert node.changes == [["c"]]
    assert node.stalls_noticed == 1
    assert node.driver.refused == {}


def test_rejected_datagrams_are_counted_by_cause_and_have_no_effect() -> None:
    node = started(B)
    good = SealedDatagrams(node.others).pack(Gossip("b", 1, (C,)))

    for datagram in (b"", b"x", good[:-1] + b"?", node.others.seal(b"no msgpack")):
        node.receive_bytes(datagram)

    assert node.driver.refused == {"truncated": 2, "forged": 1, "malformed": 1}
    assert (node.changes, node.stalls_noticed) == ([], 0)


def test_a_failed_send_ends_neither_the_other_sends_nor_the_report() -> None:
    node = started(B, C)
    node.send_errors = [OSError("no route")]

    node.driver.leave()

    assert [to for _, to in node.sent] == [C.address]
    assert node.changes == [["me"]]


def test_changes_are_reported_again_until_that_succeeds() -> None:
    node = started(B)
    node.change_errors = [RuntimeError("two"), RuntimeError("one")]

    node.driver.set_forward_only(True)
    node.receive(Gossip("b", 1))
    node.receive(Gossip("b", 1))
    node.receive(Gossip("b", 1))

    assert node.changes == [["me"], [], []]


@pytest.mark.parametrize("has_timer", [True, False])
def test_probes_continue_after_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, *, has_timer: bool
) -> None:
    """The next tick comes after 0.1 s, or at its deadline if that was set before the error."""
    node = started(B)

    def fail(now: int) -> list[Any]:
        if has_timer:
            node.driver.report_unreachable("b")
        raise RuntimeError("bug")

    with monkeypatch.context() as patched:
        patched.setattr(node.membership, "tick", fail)
        node.run_timer()
    failed_at = node.seconds

    expected = node.deadline() if has_timer else failed_at + 0.1
    assert node.next_timer.at == pytest.approx(expected)
    node.run_timer()
    assert node.next_timer.at == pytest.approx(node.deadline())


def test_a_datagram_after_a_failed_tick_makes_it_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = started(B)

    def fail(now: int) -> list[Any]:
        raise RuntimeError("bug")

    with monkeypatch.context() as patched:
        patched.setattr(node.membership, "tick", fail)
        node.run_timer()
    node.seconds += 0.05
    node.receive(Gossip("b", 1))

    assert node.next_timer.at == pytest.approx(node.seconds)


def test_an_exchange_sends_all_records_and_merges_those_of_the_answer() -> None:
    node = started(B)
    node.driver.join([C.address])

    [(request, on_reply)] = node.links[C.address].calls
    assert request.seq == 7
    assert unpack_records(request.packed) == [ME, B]
    on_reply(Exchanged(7, pack_records([B, C])))

    assert node.changes == [["c"]]


@pytest.mark.parametrize("reply", [None, Pong(7)])
def test_an_exchange_without_an_answer_changes_nothing(reply: object) -> None:
    node = started(B)
    node.driver.join([C.address])

    node.links[C.address].calls[0][1](reply)

    assert node.changes == []


def test_an_answer_after_the_stop_changes_nothing() -> None:
    node = started(B)
    node.driver.join([C.address])
    node.driver.stop()

    node.links[C.address].calls[0][1](Exchanged(7, pack_records([C])))

    assert list(node.membership.records) == ["me", "b"]


def test_an_answer_that_cannot_be_decoded_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = started(B)
    node.driver.join([C.address])

    for _ in range(2):
        node.links[C.address].calls[0][1](Exchanged(7, b"\xc1"))

    assert node.driver.refused == {"malformed": 2}
    assert node.changes == []
    assert "sender=host-c:1" in caplog.text


def test_a_peer_receives_all_records_in_exchange_for_its_own() -> None:
    node = started(B)

    answer = node.driver.exchanged("c", Exchange(9, pack_records([C])))

    assert answer.seq == 9
    assert unpack_records(answer.packed) == [ME, B, C]
    assert node.changes == [["c"]]


JOINING_B = replace(B, host="elsewhere", status=Status.JOINING)


@pytest.mark.parametrize(
    ("known", "own", "is_in_use"),
    [
        (B, JOINING_B, True),
        (B, replace(JOINING_B, host="host-b", port=2), True),
        (B, replace(JOINING_B, host="host-b"), False),
        (B, replace(JOINING_B, status=Status.ALIVE), False),
        (replace(B, status=Status.SUSPECT), JOINING_B, False),
        (replace(B, status=Status.JOINING), JOINING_B, False),
        (None, JOINING_B, False),
        (B, None, False),
        (C, replace(JOINING_B, name="c"), False),  # Another member sends this record.
    ],
)
def test_only_a_joining_node_with_the_name_of_a_living_member_elsewhere_is_rejected(
    known: Record | None, own: Record | None, *, is_in_use: bool
) -> None:
    node = started(*([known] if known else []))
    others = [replace(JOINING_B, name="a"), C]
    request = Exchange(9, pack_records([*others, own] if own else others))

    if not is_in_use:
        assert node.driver.exchanged("b", request).seq == 9
        return

    with pytest.raises(NameInUse, match="got 'b', which the node at host-b:1 has"):
        node.driver.exchanged("b", request)
    assert node.membership.records["b"] is known
    [(ping, to)] = node.sent  # The living member may have ended a moment ago.
    assert isinstance(ping, Ping)
    assert to == B.address


def test_a_conflict_of_names_is_reported() -> None:
    node = started(B)
    twin = replace(ME, host="z")

    node.receive(Gossip("b", 1, (twin,)))

    assert node.conflicts == [Conflict(twin, steps_down=True)]
