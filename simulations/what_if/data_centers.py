"""Several data centers that count one limit together, without nodes and network.

Each data center has one engine. It decides by its own exact count and the received remote counts,
and sends counts as `node.cross_dc.counts` does. The same `CountDissemination` chooses the next
counts, and a data center that has not acknowledged a round gets no further one. No message is lost.
Rounds have no random variation, but the phase of each data center's rounds is random.
"""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Literal, TypeAlias

from msgspec import Struct, field

from gossip.cross_dc.count_dissemination import CountDissemination, DueCounts, KeyCounts
from hashring import shard_of
from node.cross_dc.split import share_of
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm, Code, Engine, EngineRule
from ringfence.peering.engine_choice import engine_rules
from ringfence.rules import Rule

__all__ = ["MAX_KEYS", "Counted", "DataCenters", "Timing", "counted"]

MAX_KEYS = 10_000_000
"""Keys that one engine holds; no log that fits in memory has more."""

_KEYS_PER_ROUND = 4000
"""Maximum number of keys whose counts one data center sends to another in a round."""

Counted: TypeAlias = Literal["shared", "split", "home", "alone"]
"""How a rule is counted: together, split, in a home data center, or in each data center alone.

Algorithms without remote counts are counted in each data center alone."""

"""Key, counts per window, and the time since which they are unsent."""


class Timing(Struct, frozen=True):
    """Delays after which counts of one data center reach another."""

    delay_ns: int
    """One-way delay between two data centers."""
    interval_ns: int
    """Interval between two rounds of a data center."""

    @property
    def late_ns(self) -> int:
        """Maximum age of a remote count. A unit that misses one round waits for the next permitted
        round."""
        rounds = max(1, -(-2 * self.delay_ns // self.interval_ns))
        return rounds * self.interval_ns + self.delay_ns


class _Center(Struct):
    """One data center with its limiter engine and the counts received from other data centers."""

    name: str
    engine: Engine
    phase_ns: int
    """Phase of its rounds within the interval."""
    spreads: dict[int, CountDissemination] = field(default_factory=dict)
    """Counts that each other data center has received."""
    unconfirmed: dict[int, bool] = field(default_factory=dict)
    """Whether a message to each other data center is in flight."""
    rests: bool = True
    """Whether there is nothing to send, so that no round is planned."""


class DataCenters:
    """All simulated data centers on one clock, which `advance` moves."""

    def __init__(
        self, rules: Sequence[Rule], count: int, timing: Timing, random: Random, *, exact: bool
    ) -> None:
        """With `exact`, all data centers share one limiter engine, so no counts are sent."""
        self._timing = timing
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        """Heap of instant, number and call; equal instants are ordered by number."""
        self._numbered = 0
        self._shared = {
            rule.id.to_bytes(8, "big") for rule in rules if not exact and counted(rule) == "shared"
        }
        self._has_home = not exact and any(counted(rule) == "home" for rule in rules)
        names = [f"dc{number + 1}" for number in range(count)]
        one = Engine(max_keys=MAX_KEYS)
        one.set_rules(engine_rules(rules))
        self._centers = [
            _Center(
                name,
                one if exact else _engine(rules, name, names),
                random.randrange(timing.interval_ns),
            )
            for name in names
        ]
        for me, center in enumerate(self._centers):
            others = [other for other in range(count) if other != me and not exact]
            center.spreads = {other: CountDissemination(shard_of) for other in others}
            center.unconfirmed = dict.fromkeys(others, False)

    def advance(self, now: int) -> None:
        """Run all events until `now`, in nanoseconds since the Unix epoch."""
        while self._events and self._events[0][0] <= now:
            at, _, happen = heappop(self._events)
            happen(at)

    def decider(self, at: int, rules: Sequence[Rule]) -> tuple[int, Engine]:
        """Return the data center that decides a request received by data center `at`, and its
        engine.

        Raises `ConfigError` when several data centers would decide it.
        """
        if self._has_home:
            at_home = [rule.scope == "home" for rule in rules]
            if any(at_home):
                if not all(at_home):
                    raise ConfigError(
                        "a request meets both a rule with `mode: home` and one without, which "
                        "cannot be simulated here; give fewer --descriptor options at once"
                    )
                at = 0
        return at, self._centers[at].engine

    def admitted(self, at: int, keys: Sequence[bytes], codes: Sequence[int], now: int) -> None:
        """Record units that a data center has charged, to send them to the other data centers."""
        center = self._centers[at]
        if not center.spreads:
            return
        for key, code in zip(keys, codes, strict=True):
            if code <= Code.OVER_SOFT and key[:8] in self._shared:
                for spread in center.spreads.values():
                    spread.mark_changed(key, now)
                if center.rests:
                    center.rests = False
                    interval = self._timing.interval_ns
                    past = (now - center.phase_ns) % interval
                    self._at(now - past + interval, partial(self._round, at))

    def _at(self, instant: int, happen: Callable[[int], None]) -> None:
        self._numbered += 1
        heappush(self._events, (instant, self._numbered, happen))

    def _round(self, me: int, now: int) -> None:
        """Send the counts of one periodic round from a data center to the others."""
        center = self._centers[me]
        known: dict[bytes, KeyCounts] = {}
        read = partial(_facts, center.engine, now, known)
        for other, spread in center.spreads.items():
            if len(spread) and not center.unconfirmed[other]:
                rows = spread.take_due(read, _KEYS_PER_ROUND, now)
                if rows:
                    center.unconfirmed[other] = True
                    delay = self._timing.delay_ns
                    self._at(now + delay, partial(self._heard, me, other, rows))
                    self._at(now + 2 * delay, partial(self._confirmed, me, other, rows))
        if any(map(len, center.spreads.values())):
            self._at(now + self._timing.interval_ns, partial(self._round, me))
        else:
            center.rests = True

    def _heard(self, writer: int, other: int, rows: Sequence[DueCounts], now: int) -> None:
        keys, cells = [row.key for row in rows], [row.cells for row in rows]
        self._centers[other].engine.merge_remote(self._centers[writer].name, keys, cells, now)

    def _confirmed(self, writer: int, other: int, rows: Sequence[DueCounts], _now: int) -> None:
        center = self._centers[writer]
        center.unconfirmed[other] = False
        for row in rows:
            center.spreads[other].on_acknowledged(row.key, row.cells)


def counted(rule: Rule) -> Counted:
    """Return how the units of a rule are counted: by its scope, or in all data centers together by
    default."""
    if rule.scope == "split":
        return "split"
    if rule.scope == "home":
        return "home"
    limit = rule.limit
    if limit is None or limit.is_bucket:
        return "shared"
    is_told = limit.algorithm in (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW)
    return "shared" if is_told else "alone"


def _engine(rules: Sequence[Rule], name: str, names: Sequence[str]) -> Engine:
    """Create the limiter engine of one data center, configured as `node.cross_dc.counts` does."""
    engine = Engine(max_keys=MAX_KEYS)
    engine.set_rules(
        {
            rule.id: EngineRule(
                share_of(rule.limit, name, names) if rule.scope == "split" else rule.limit,
                denies_group=not (rule.shadow or rule.quota),
                is_shared=counted(rule) == "shared",
            )
            for rule in rules
            if rule.limit is not None
        }
    )
    return engine


def _facts(
    engine: Engine, now: int, known: dict[bytes, KeyCounts], keys: Sequence[bytes]
) -> list[KeyCounts]:
    """Return the counts of keys for `CountDissemination`; `known` caches them while one round is
    sent."""
    for key in keys:
        if key not in known:
            cells = engine.local_counts((key,), now)[0]
            known[key] = KeyCounts(cells, engine.used(key, now), engine.ceiling(key))
    return [known[key] for key in keys]
