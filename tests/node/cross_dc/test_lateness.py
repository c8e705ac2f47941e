"""Excess of two data centers over a global limit, for each delay of their counts.

The engines and the order of the sent counts are those of a node. The test provides time, rounds and
links, so it knows each delay to the millisecond.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.cross_dc.count_dissemination import CountDissemination, DueCounts, KeyCounts
from hashring import shard_of
from ringfence.limiter import Algorithm, Code, Engine, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.rules.cross_dc_bounds import cross_dc_bounds
from ringfence.wire import Batch, Op

MS = 10**6
RULE = 7
KEY = RULE.to_bytes(8, "big") + b"k"
ROUND_MS = 200
LIMITS = {
    Algorithm.FIXED_WINDOW: Limit(100, 3600, Algorithm.FIXED_WINDOW),
    Algorithm.SLIDING_WINDOW: Limit(100, 3600, Algorithm.SLIDING_WINDOW),
}
BEGIN_MS = 3_600_000 * 500_000


@dataclass
class DataCenter:
    """One data center, with the times of its admissions and the units received from the other."""

    engine: Engine
    phase_ms: int
    spread: CountDissemination = field(default_factory=lambda: CountDissemination(shard_of))
    admitted_ms: list[int] = field(default_factory=list)
    received: int = 0
    """Units of the other data center that this one has received."""
    is_waiting: bool = False

    def facts(self, keys: Sequence[bytes], now: int) -> list[KeyCounts]:
        cells = self.engine.local_counts(keys, now)
        return [
            KeyCounts(row, self.engine.used(key, now), self.engine.ceiling(key))
            for key, row in zip(keys, cells, strict=True)
        ]


class Pair:
    """Two data centers and the link between them."""

    def __init__(self, limit: Limit, delay_ms: int, phases_ms: tuple[int, int]) -> None:
        self.delay_ms = delay_ms
        self.now_ms = BEGIN_MS
        self.is_cut = False
        self.centers = [DataCenter(_engine(limit), phase) for phase in phases_ms]
        self.worst_ms = 0
        """Largest age of a remote unit that was not yet received when a unit was admitted."""
        self._messages: list[tuple[int, int, list[tuple[bytes, list[int], int]], bool]] = []

    def check(self, which: int) -> bool:
        """Check one unit in one data center, and measure the age of missing remote units."""
        center, other = self.centers[which], self.centers[1 - which]
        batch = Batch(Op.CHECK, [KEY], [1])
        is_admitted = (
            decide_batch(center.engine, batch, self.now_ms * MS).codes[0] <= Code.OVER_SOFT
        )
        if is_admitted:
            center.admitted_ms.append(self.now_ms)
            center.spread.mark_changed(KEY, self.now_ms * MS)
            if center.received < len(other.admitted_ms):
                self.worst_ms = max(self.worst_ms, self.now_ms - other.admitted_ms[center.received])
        return is_admitted

    def run_to(self, instant_ms: int) -> None:
        """Advance the time, run the due rounds and deliver the due messages."""
        while self.now_ms < instant_ms:
            self.now_ms += 1
            for message in [message for message in self._messages if message[0] <= self.now_ms]:
                self._messages.remove(message)
                self._arrive(*message[1:])
            for which, center in enumerate(self.centers):
                if (self.now_ms - center.phase_ms) % ROUND_MS == 0 and not center.is_waiting:
                    self._send_round(which, center)

    def _send_round(self, which: int, center: DataCenter) -> None:
        now = self.now_ms * MS
        rows = center.spread.take_due(lambda keys: center.facts(keys, now), 10, now)
        if not rows:
            return
        center.is_waiting = True
        if not self.is_cut:
            self._messages.append((self.now_ms + self.delay_ms, 1 - which, rows, False))
        self._messages.append((self.now_ms + 2 * self.delay_ms, which, rows, True))

    def _arrive(self, which: int, rows: list[DueCounts], is_answer: bool) -> None:
        center = self.centers[which]
        for key, cells, since in ((row.key, row.cells, row.since) for row in rows):
            if not is_answer:
                center.engine.merge_remote("other", [key], [cells], self.now_ms * MS)
                center.received = max(center.received, sum(cells[1::2]))
                continue
            center.is_waiting = False
            if self.centers[1 - which].received >= sum(cells[1::2]):
                center.spread.on_acknowledged(key, cells)
            else:
                center.spread.on_lost(key, since)

    @property
    def admitted(self) -> int:
        return sum(len(center.admitted_ms) for center in self.centers)

    @property
    def used(self) -> list[int]:
        return [center.engine.used(KEY, self.now_ms * MS) for center in self.centers]

    def within(self, span_ms: int) -> int:
        """Return the most units that one data center admitted in any time span of this length."""
        return max(
            sum(at - span_ms <= each <= at for each in center.admitted_ms)
            for center in self.centers
            for at in center.admitted_ms or [0]
        )


def _engine(limit: Limit) -> Engine:
    engine = Engine(max_keys=10)
    engine.set_rules({RULE: EngineRule(limit, is_shared=True)})
    return engine


@pytest.mark.parametrize("algorithm", LIMITS)
@settings(max_examples=25, deadline=None)
@given(
    delay_ms=st.integers(0, 150),
    phases_ms=st.tuples(st.integers(0, 199), st.integers(0, 199)),
    gaps_ms=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60)), min_size=150, max_size=250),
    cut=st.one_of(st.none(), st.tuples(st.integers(0, 3000), st.integers(0, 3000))),
)
def test_a_limit_is_exceeded_by_no_more_than_was_admitted_while_counts_were_late(
    algorithm: Algorithm,
    delay_ms: int,
    phases_ms: tuple[int, int],
    gaps_ms: list[tuple[int, int]],
    cut: tuple[int, int] | None,
) -> None:
    """S9: the excess is at most what a data center admits during the measured lateness."""
    limit = LIMITS[algorithm]
    pair = Pair(limit, delay_ms, phases_ms)
    begin, length = cut or (0, 0)
    for which, gap_ms in gaps_ms:
        pair.run_to(pair.now_ms + gap_ms)
        pair.is_cut = begin <= pair.now_ms - BEGIN_MS < begin + length
        pair.check(which)

    assert pair.admitted <= limit.amount + pair.within(pair.worst_ms)
    late_ms = cross_dc_bounds(limit, "global", 2, 2 * delay_ms * MS, 1.0).staleness_ns / MS
    # A change of less than a hundredth may wait for a second. A message that a cut lost is sent
    # again in the next round.
    assert pair.worst_ms <= late_ms + 1000 + length + (2 * late_ms if cut else 0)


def test_the_measured_lateness_of_a_cut_of_fifteen_seconds_bounds_the_excess() -> None:
    """S9 during a cut: the lateness is the length of the cut, not the class of a histogram."""
    limit = LIMITS[Algorithm.FIXED_WINDOW]
    pair = Pair(limit, 40, (0, 77))
    pair.is_cut = True
    for _ in range(150):
        pair.run_to(pair.now_ms + 100)
        pair.check(0)
        pair.check(1)
    pair.is_cut = False
    pair.run_to(pair.now_ms + 2000)

    # After ten seconds at 10 units a second, both had admitted the whole limit of 100 units.
    assert pair.admitted == 200
    assert pair.worst_ms == 9900
    assert pair.used == [200, 200]
    assert not pair.check(0)


@settings(max_examples=30, deadline=None)
@given(
    delay_ms=st.integers(0, 150),
    phases_ms=st.tuples(st.integers(0, 199), st.integers(0, 199)),
    units=st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_after_the_last_hit_counts_are_equal_within_two_rounds_and_two_round_trips(
    delay_ms: int, phases_ms: tuple[int, int], units: tuple[int, int]
) -> None:
    """V2, with exactly Y_c, for changes of at least a hundredth of the limit."""
    pair = Pair(LIMITS[Algorithm.FIXED_WINDOW], delay_ms, phases_ms)
    for which, count in enumerate(units):
        for _ in range(count):
            assert pair.check(which)
    pair.run_to(pair.now_ms + 2 * ROUND_MS + 4 * delay_ms)

    assert pair.used == [sum(units)] * 2


def test_a_change_below_a_hundredth_is_sent_after_a_second() -> None:
    """V2, for smaller changes: these wait for at most a second."""
    limit = Limit(1000, 3600, Algorithm.FIXED_WINDOW)
    pair = Pair(limit, 40, (0, 0))
    pair.check(0)
    pair.run_to(pair.now_ms + 999)
    assert pair.used == [1, 0]
    pair.run_to(pair.now_ms + 2 * ROUND_MS + 4 * 40)

    assert pair.used == [1, 1]
