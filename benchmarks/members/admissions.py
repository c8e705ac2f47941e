"""Units that nodes admitted, by key, and their comparison with the counters after a crash."""

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import trio

from hashring import NodeId
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import described
from ringfence.wire import BY_POLICY, Source

__all__ = ["Admissions", "Loss", "counted", "owned_by"]

_MAY_LOSE_S = 0.1
_UNDECIDED = (*BY_POLICY, Source.LOCAL)
"""Sources of decisions that no node made, so that no counter has their units."""
_KEPT_S = 1.0
"""Time before the kill of which answers are recorded."""
_MAX_KEPT = 1_000_000
"""Most recorded answers."""
_PAUSE = 0.1
"""Seconds before a counter is read again that no node has returned."""
_PATIENCE = 60.0
"""Seconds after which a counter that no node returns is an error."""
_TASKS = 64
"""Counters that are read at a time."""


class _Answer(NamedTuple):
    """Admission by an owner."""

    key: str
    asked_at: float
    received_at: float


class Loss(NamedTuple):
    """Units that were lost in a crash."""

    lost: int
    may_lose: int
    """Units that the killed node was asked for in its last 100 ms, and admitted. It admitted at
    least so many in this time."""
    oldest_s: float
    """Time between the oldest lost answer and the crash; `_KEPT_S` if that is not recorded."""
    counted_twice: int


class Admissions:
    """Units that nodes admitted by key, and the last answers of the owners with their times."""

    def __init__(self) -> None:
        self.by_key: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.undecided = 0
        self._last: deque[_Answer] = deque(maxlen=_MAX_KEPT)
        self._crashed_at: float | None = None

    def add(
        self, key: str, source: Source, asked_at: float, now: float, *, is_allowed: bool
    ) -> None:
        """Record the decision for one key."""
        self.slowest_s = max(self.slowest_s, now - asked_at)
        if source in _UNDECIDED:
            self.undecided += 1
        elif is_allowed:
            self.by_key[key] += 1
            is_before = self._crashed_at is None or asked_at < self._crashed_at
            if is_before and source is Source.OWNER:
                self._last.append(_Answer(key, asked_at, now))
        while self._crashed_at is None and self._last and self._last[0].received_at < now - _KEPT_S:
            self._last.popleft()

    def crash(self, now: float) -> None:
        """Record the instant of the crash. Later questions are not to the killed node."""
        self._crashed_at = now

    def compare(self, counted: Counter[str], owned: Callable[[str], bool]) -> Loss:
        """Compare the admitted units with the counters.

        `owned` returns whether a key belonged to the killed node.
        """
        assert self._crashed_at is not None
        left = self.by_key - counted
        lost, may_lose, oldest = left.total(), 0, 0.0
        for answer in reversed(self._last):  # The last units of a key are the lost ones.
            age = self._crashed_at - answer.received_at
            is_recent = answer.asked_at >= self._crashed_at - _MAY_LOSE_S
            if is_recent and owned(answer.key):
                may_lose += 1
            if left[answer.key] > 0:
                left[answer.key] -= 1
                oldest = max(oldest, age)
        if left.total() > 0:
            oldest = _KEPT_S
        return Loss(lost, may_lose, oldest, (counted - self.by_key).total())


def owned_by(cluster: Cluster, name: str, rule: str) -> Callable[[str], bool]:
    """Return a function that returns whether a node owns a key of a rule, by the ring of now."""
    routes, rules = cluster.routes, cluster.rules
    assert routes is not None

    def is_owned(key: str) -> bool:
        [match] = rules.match("bench", described({rule: key}))
        assert match is not None
        return routes.owner(match.key) == NodeId(name)

    return is_owned


async def counted(limiter: Limiter, rule: str, limit: int, keys: list[str]) -> Counter[str]:
    """Read the counters of all keys of a rule."""
    found: Counter[str] = Counter()
    left = iter(keys)

    async def work() -> None:
        for key in left:
            decision = await limiter.peek("bench", {rule: key})
            with trio.fail_after(_PATIENCE):
                while decision.remaining is None:  # No node decided: the machine is overloaded.
                    await trio.sleep(_PAUSE)
                    decision = await limiter.peek("bench", {rule: key})
            found[key] = limit - decision.remaining

    async with trio.open_nursery() as nursery:
        for _ in range(_TASKS):
            nursery.start_soon(work)
    return found
