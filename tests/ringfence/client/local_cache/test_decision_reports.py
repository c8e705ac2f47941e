"""Choice of the member that receives a report, and repeated reports."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ringfence.client.local_cache.decision_counts import DecisionCounts
from ringfence.client.local_cache.decision_reports import DecisionReports
from ringfence.limiter import Code
from ringfence.wire import Done, Message, Report, Source


@dataclass
class Member:
    name: str
    sent: list[Report] = field(default_factory=list)
    waiting: list[Callable[[object], None]] = field(default_factory=list)

    def report(self, make: Callable[[int], Message], on_reply: Callable[[object], None]) -> None:
        message = make(len(self.sent) + 1)
        assert isinstance(message, Report)
        self.sent.append(message)
        self.waiting.append(on_reply)

    def answer(self, reply: object) -> None:
        self.waiting.pop()(reply)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.tally = DecisionCounts(lambda number: None)
        self.reporting = DecisionReports(self.tally, 1, lambda: None, lambda: self.now)
        self.members = [Member("a"), Member("b"), Member("c")]
        self.known = ["a", "b", "c"]
        self.reported: list[bool] = []

    def count(self, count: int = 1) -> None:
        self.tally.add(b"ruleidnt", Code.ALLOWED.value, Source.LEASE.value, count)

    def send(self, *names: str) -> bool:
        reachable = [each for each in self.members if not names or each.name in names]
        return self.reporting.send(reachable, self.known, self.reported.append)

    def numbers(self) -> dict[str, list[tuple[int, int]]]:
        return {m.name: [(r.number, sum(r.counts)) for r in m.sent] for m in self.members}


def test_nothing_is_sent_when_nothing_was_decided() -> None:
    w = World()

    assert not w.send()
    assert not w.reporting.has_any


def test_numbered_reports_go_to_one_node_while_it_answers() -> None:
    w = World()
    for count in (3, 4):
        w.count(count)
        assert w.send()
        w.members[1].answer(Done(1))

    assert w.numbers() == {"a": [], "b": [(1, 3), (2, 4)], "c": []}
    assert w.reported == [True, True]
    assert not w.reporting.has_any


def test_one_report_is_in_flight_at_a_time() -> None:
    w = World()
    w.count(3)
    w.send()
    w.count(4)

    assert not w.send()
    w.members[1].answer(Done(1))
    assert w.send()
    assert w.numbers()["b"] == [(1, 3), (2, 4)]


def test_an_unanswered_report_is_sent_to_the_same_node_again() -> None:
    w = World()
    w.count(3)
    w.send()
    w.members[1].answer(None)
    w.count(4)

    assert not w.send("a", "c")
    assert w.send()
    assert w.numbers() == {"a": [], "b": [(1, 3), (1, 3)], "c": []}


def test_another_member_gets_the_report_after_the_first_has_left() -> None:
    w = World()
    w.count(3)
    w.send()
    w.members[1].answer(None)
    w.known = ["a", "c"]

    assert w.send("a", "c")
    assert w.numbers()["c"] == [(1, 3)]


def test_another_node_gets_the_report_after_a_long_outage() -> None:
    w = World()
    w.count(3)
    w.send()
    w.members[1].answer(None)
    w.now = 29.0
    assert not w.send("a")
    w.now = 30.0

    assert w.send("a")
    assert w.numbers()["a"] == [(1, 3)]


def test_without_members_decisions_wait() -> None:
    w = World()
    w.count(3)

    assert not w.reporting.send([], [], w.reported.append)
    assert w.reporting.has_any
