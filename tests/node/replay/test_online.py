"""A replay through a limiter of nodes: its pace, and its bound on checks in flight."""

from math import inf

import pytest
import trio
from trio.testing import MockClock

import ringfence
from node.replay.log_formats import Entry
from node.replay.online import replay_online
from node.replay.tally import Shape, Tally
from ringfence.client.decision import UNLIMITED, Decision
from ringfence.client.limiter import Limiter
from ringfence.rules.loading.yaml_files import load_text

RULES = load_text(
    "domain: log\ndescriptors:\n  - key: client\n"
    "    rate_limit: {requests_per_unit: 2, unit: hour, algorithm: fixed_window}\n"
    "  - key: path\n    rate_limit: {requests_per_unit: 2, unit: hour}\n"
).rules


def entry(seconds: float) -> Entry:
    return Entry(round(seconds * 1e9), "a", "GET", "/", "200")


async def replay(entries: list[Entry], limiter: Limiter, speed: float) -> tuple[Tally, list[float]]:
    """Return the tally, and the seconds after the start at which each check was sent."""
    started, sent_at = trio.current_time(), []

    def on_decision(entry: Entry, decision: Decision, sent: float, answered: float) -> None:
        sent_at.append(sent - started)

    tally = await replay_online(
        entries,
        Shape.parse(["client"]),
        limiter,
        speed=speed,
        on_decision=on_decision,
        on_progress=lambda checks: None,
    )
    return tally, sent_at


@pytest.mark.parametrize(
    ("speed", "expected"), [(1, [0, 3, 3, 10]), (10, [0, 0.3, 0.3, 1]), (inf, [0, 0, 0, 0])]
)
async def test_checks_are_sent_at_the_pace_of_the_log_times_the_speed(
    autojump_clock: MockClock, speed: float, expected: list[float]
) -> None:
    entries = [entry(seconds) for seconds in (1000, 1003, 1003, 1010)]
    async with ringfence.local(RULES) as limiter:
        tally, sent_at = await replay(entries, limiter, speed)

    assert sent_at == pytest.approx(expected)
    assert (tally.checks, tally.allowed, tally.denied) == (4, 2, 2)
    assert [each.checks for each in tally.rules.values()] == [4, 0]


class SlowLimiter:
    """A limiter whose checks take a second each."""

    rules = RULES

    def __init__(self) -> None:
        self.in_flight = self.most_in_flight = 0

    async def check(self, domain: str, descriptors: object) -> Decision:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        await trio.sleep(1)
        self.in_flight -= 1
        return UNLIMITED


async def test_at_most_256_checks_are_in_flight(autojump_clock: MockClock) -> None:
    slow = SlowLimiter()
    tally, sent_at = await replay([entry(0)] * 600, slow, inf)  # type: ignore[arg-type]

    assert slow.most_in_flight == 256
    assert [sent_at.count(second) for second in (0, 1, 2)] == [256, 256, 88]
    assert tally.checks == 600
