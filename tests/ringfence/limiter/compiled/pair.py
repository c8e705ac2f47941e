"""Reference engine and compiled engine that receive the same calls, for comparisons."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ringfence.limiter import (
    Algorithm,
    Calendar,
    Engine,
    EngineRule,
    Limit,
    Outcomes,
    Snapshot,
    compiled_tables,
)
from ringfence.limiter.packed.packed_snapshot import check_rows

__all__ = ["COSTS", "DAY_NS", "GAPS_NS", "LIMITS", "Pair", "key_of"]

SECRET = bytes(range(16))
DAY_NS = 86_400 * 10**9
LIMITS = [
    Limit.of_ns(5, 30, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(7, 60 * 10**9, Algorithm.TOKEN_BUCKET, burst=20),
    Limit.of_ns(1_000_003, 10**9, Algorithm.TOKEN_BUCKET, soft_permille=100),
    Limit.of_ns(3, 10, Algorithm.LEAKY_BUCKET, burst=2),
    Limit.of_ns(4, 100, Algorithm.LEAKY_BUCKET, queue=True),
    Limit.of_ns(0, 10, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(2**53 - 1, 1, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(5, 30, Algorithm.FIXED_WINDOW),
    Limit.of_ns(100, 60 * 10**9, Algorithm.FIXED_WINDOW, soft_permille=400),
    Limit.of_ns(2**40, 10**6, Algorithm.FIXED_WINDOW),
    Limit.of_ns(3, DAY_NS, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone="Europe/Berlin"),
    Limit.of_ns(5, 30, Algorithm.SLIDING_WINDOW),
    Limit.of_ns(50, 60 * 10**9, Algorithm.SLIDING_WINDOW, soft_permille=100),
    Limit.of_ns(2**40, 3, Algorithm.SLIDING_WINDOW),
    Limit.of_ns(6, 30, Algorithm.SLIDING_WINDOW, slots=3),
    Limit.of_ns(5, 30, Algorithm.SLIDING_WINDOW_LOG),
    Limit.of_ns(60, 60 * 10**9, Algorithm.SLIDING_WINDOW_LOG, soft_permille=100),
    Limit.of_ns(9, 7 * DAY_NS, Algorithm.SLIDING_WINDOW_LOG),
    Limit.of_ns(3, 40, Algorithm.CONCURRENCY),
    Limit.of_ns(4, 60, Algorithm.FIXED_WINDOW, first_hit=True),
]
COSTS = [0, 1, 1, 1, 2, 3, 7, 60, 2**33, 2**70]
GAPS_NS = [0, 0, 1, 3, 7, 30, 100, 10**6, 10**9, 20 * 10**9, 61 * 10**9, DAY_NS, 40 * DAY_NS]


def key_of(rule: int, number: int) -> bytes:
    """Return a key of a rule; the rule may be unknown."""
    return rule.to_bytes(8, "big") + b"key-%d" % number


class Pair:
    """Two engines that must return the same. Rules are indices into `LIMITS`."""

    def __init__(self, rules: Sequence[int], now: int) -> None:
        self.now = now
        self.reference = Engine(max_keys=10**6)
        self.compiled = Engine(max_keys=10**6, tables=compiled_tables(SECRET, keeps_keys=True))
        self.set_rules(rules, shared=())

    @property
    def engines(self) -> tuple[Engine, Engine]:
        """Return the reference engine and the compiled engine."""
        return self.reference, self.compiled

    def set_rules(self, rules: Sequence[int], shared: Sequence[int]) -> None:
        """Set rules 0, 1 and so on, with these limits; rule 1 has no veto."""
        for engine in self.engines:
            engine.set_rules(
                {
                    number: EngineRule(
                        LIMITS[limit], denies_group=number != 1, is_shared=number in shared
                    )
                    for number, limit in enumerate(rules)
                }
            )

    def decide(
        self, rows: Sequence[tuple[int, int, int, int]], *, groups: Sequence[int] = ()
    ) -> Outcomes:
        """Check rows of rule, number, cost and 1 + the index of a carried limit, or 0."""
        keys = [key_of(rule, number) for rule, number, _, _ in rows]
        costs = [cost for _, _, cost, _ in rows]
        which = [carried for _, _, _, carried in rows]
        which = which if any(which) else []
        expected, found = (
            engine.decide(keys, costs, groups, LIMITS, which, self.now) for engine in self.engines
        )
        assert found == expected
        return found

    def decide_lone(self, rule: int, number: int, cost: int) -> None:
        """Check one key by the limit of its rule."""
        key = key_of(rule, number)
        expected, found = (engine.decide_lone(key, cost, self.now, 2) for engine in self.engines)
        assert found == expected

    def decide_each(self, groups: Sequence[tuple[int, Sequence[tuple[int, int, int]]]]) -> None:
        """Check groups of (rule, number, cost), each some ns after the previous group."""
        rows = [row for _, group in groups for row in group]
        keys = [key_of(rule, number) for rule, number, _ in rows]
        costs = [cost for _, _, cost in rows]
        instants: list[int] = []
        for gap, group in groups:
            self.now += gap
            instants += [self.now] * len(group)
        sizes = [len(group) for _, group in groups if group]
        expected, found = (
            engine.decide_each(keys, costs, sizes, instants) for engine in self.engines
        )
        assert found == expected

    def reject(self, keys: Sequence[Any], costs: Sequence[Any], groups: Sequence[Any]) -> None:
        """Check a frame with errors. What is charged before an error may differ afterwards."""
        for key, cost in zip(keys[:1], costs[:1], strict=False):
            expected, found = (
                _result_of(engine.decide_lone, key, cost, self.now, 2) for engine in self.engines
            )
            assert found == expected
        expected, found = (
            _result_of(engine.decide, keys, costs, groups, [], [], self.now)
            for engine in self.engines
        )
        assert found == expected

    def refund(self, rule: int, number: int, cost: int, age_ns: int, slot_id: int = 0) -> None:
        """Refund units, or release a slot."""
        key = [key_of(rule, number)]
        expected, found = (
            engine.refund(key, [cost], [age_ns], [slot_id], [], [], self.now)
            for engine in self.engines
        )
        assert found == expected

    def renew(self, rule: int, number: int, slot_id: int) -> None:
        """Renew a slot for another period."""
        key = [key_of(rule, number)]
        expected, found = (
            engine.renew(key, [slot_id], [], [], self.now) for engine in self.engines
        )
        assert found == expected

    def charge(self, rule: int, number: int, units: int, age_ns: int, carried: int) -> None:
        """Charge units that another node has admitted.

        The last limit and time of an unused key depend on when an engine removed it. So unused
        keys are only charged by a carried limit and without an age.
        """
        if not self.reference.used(key_of(rule, number), self.now) and (age_ns or not carried):
            return
        for engine in self.engines:
            engine.charge(
                [key_of(rule, number)], [units], [age_ns], self.now, limits=LIMITS, which=[carried]
            )

    def charge_now(self, rule: int, number: int, cost: int, carried: int) -> None:
        """Charge units that are spent now, also beyond the limit."""
        key = [key_of(rule, number)]
        limits, which = (LIMITS, [carried]) if carried else ([], [])
        expected, found = (
            engine.charge_now(key, [cost], limits, which, self.now) for engine in self.engines
        )
        assert found == expected

    def merge_remote(self, rule: int, number: int, cells: Sequence[int]) -> None:
        """Merge counts of another data center."""
        expected, found = (
            engine.merge_remote("far", [key_of(rule, number)], [cells], self.now)
            for engine in self.engines
        )
        assert found == expected

    def reset(self, rule: int, number: int) -> None:
        """Reset a key."""
        key = [key_of(rule, number)]
        expected, found = (engine.reset(key, [], [], self.now) for engine in self.engines)
        assert found == expected

    def move(self, keys: Sequence[bytes], later_ns: int) -> None:
        """Transfer counters as between two nodes: snapshot, forget, restore."""
        snapshots = self.compare(keys)
        self.now += later_ns
        for engine, snapshot in zip(self.engines, snapshots, strict=True):
            engine.forget(keys)
            assert not any(engine.has(key) for key in keys)
            assert engine.restore(snapshot, self.now) == 0

    def compare(self, keys: Sequence[bytes]) -> tuple[Snapshot, Snapshot]:
        """Compare the counters of keys; return the snapshots of both engines.

        One snapshot may have keys without units in use that the other one lacks.
        """
        expected, found = (self._packed(engine, keys) for engine in self.engines)
        only_one = {*found.keys} ^ {*expected.keys}
        rows = [rows_in(snapshot, without=only_one) for snapshot in (expected, found)]
        assert rows[1] == rows[0]
        # When a limit becomes shared, only one engine may have a key with less than one unit: a
        # compiled store may have removed it before.
        for key, _, remote in rows_in(expected) + rows_in(found):
            assert key not in only_one or not (remote or self.reference.used(key, self.now))
        for key in keys:
            assert self.compiled.used(key, self.now) == self.reference.used(key, self.now)
            assert self.compiled.ceiling(key) == self.reference.ceiling(key)
        in_use = {key for key in keys if self.reference.used(key, self.now)}
        assert in_use <= set(self.compiled.keys())
        return expected, found

    def _packed(self, engine: Engine, keys: Sequence[bytes]) -> Snapshot:
        """Return the counters in use; their packed form must be equal."""
        counts, packed = engine.snapshot(keys, self.now), engine.pack(keys, self.now)
        check_rows(packed.rows, len(keys), len(packed.limits), 8, 255)
        rows = packed.unpack()
        used = [at for at, state in enumerate(rows.states) if state]
        assert [keys[at] for at in used] == counts.keys
        assert [rows.states[at] for at in used] == counts.states
        assert [rows.limits[rows.which[at]] for at in used] == limits_in(counts)
        assert [rows.remote_counts[at] for at in used if rows.remote_counts] == counts.remote_counts
        return counts

    def peek(self, keys: Sequence[bytes]) -> None:
        """Peek at keys, and compare the local counts that would be sent to other data centers."""
        expected, found = (
            engine.decide(keys, [0] * len(keys), [], [], [], self.now) for engine in self.engines
        )
        assert found == expected
        expected_counts, found_counts = (
            engine.local_counts(keys, self.now) for engine in self.engines
        )
        for mine, other in zip(found_counts, expected_counts, strict=True):
            if mine and other:  # Older windows may have been removed after their end.
                assert mine[-2:] == other[-2:]


def limits_in(snapshot: Snapshot) -> list[Limit]:
    """Return the limit of each key."""
    return [snapshot.limits[which] for which in snapshot.which]


def rows_in(
    snapshot: Snapshot, without: Collection[bytes] = ()
) -> list[tuple[bytes, Limit, dict[str, list[int]]]]:
    """Return each key with its limit and with the counts of other data centers."""
    remote = snapshot.remote_counts or [{}] * len(snapshot.keys)
    rows = zip(snapshot.keys, limits_in(snapshot), remote, strict=True)
    return [row for row in rows if row[0] not in without]


def _result_of(decide: Callable[..., object], *arguments: object) -> object:
    """Return the result, or the class of the error."""
    try:
        return decide(*arguments)
    except (TypeError, ValueError) as error:
        return type(error)
