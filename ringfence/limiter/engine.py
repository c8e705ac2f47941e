"""Rate limiting engine: all counters of one process, and decisions on checks.

The caller has matched the rules and found the owners of the keys. The engine reads the rule's id
from the first 8 bytes of a key.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from ringfence.limiter.backends import LoneDecider, Tables
from ringfence.limiter.groups import (
    ID_BYTES,
    UNKNOWN,
    Member,
    carried,
    decide_group,
    decide_run,
    peek,
    runs,
    spans,
)
from ringfence.limiter.limit import Algorithm, Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.packed.packed_snapshot import PackedSnapshot, pack_rows
from ringfence.limiter.reference import Verdict, columns
from ringfence.limiter.rule_tables import EngineRule, RuleTables
from ringfence.limiter.serialization import BadState, Snapshot
from ringfence.limiter.table import Table

__all__ = ["Engine"]

_KEYS_PER_SLICE = 2000


class Engine:
    """Decisions on checks, and all counters of one process: at most `max_keys` keys and `max_bytes`
    bytes.

    A request may carry limits that replace the limits of rules: `which[i]` is 0 for the rule's own
    limit, or 1 + an index into `limits`. Both lists are empty when no check carries a limit. A
    carried limit uses the counters of the rule. All carried limits without a known rule share one
    table.

    `max_bytes` bounds an estimate of the bytes of counters and keys. The default is `BYTES_PER_KEY`
    for each of `max_keys`, at least `MIN_BYTES`.
    """

    def __init__(
        self,
        *,
        max_keys: int,
        max_bytes: int | None = None,
        first_slot_id: int = 1,
        tables: Tables | None = None,
    ) -> None:
        self._tables = RuleTables(
            max_keys=max_keys, max_bytes=max_bytes, first_slot_id=first_slot_id, tables=tables
        )
        self._rules = self._tables.rules
        self.on_conversion = self._tables.on_conversion
        self._frames = self._tables.backend.frames(
            lambda keys, costs, now: decide_group(self._members(keys, costs, (), ()), now),
            self._tables,
        )

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def is_compiled(self) -> bool:
        """Whether counters are in compiled tables."""
        return self._frames is not None

    @property
    def bytes_in_use(self) -> int:
        """Approximate bytes of all counters with their keys, without empty slots of tables."""
        return self._tables.bytes_in_use

    @property
    def evicted(self) -> int:
        """Number of keys that were evicted while their counters were in use, without those of
        removed rules."""
        return sum(table.evicted for table in self._tables.all())

    def sizes(self) -> tuple[dict[int, int], int]:
        """Return how many keys have counters: for each known rule by id, and for checks without
        a rule."""
        return self._tables.sizes()

    def set_rules(self, rules: Mapping[int, EngineRule]) -> None:
        """Replace the rules of the engine. Rules that remain keep their counters, even with another
        limit.

        A new rule takes over the counters of checks that were decided by limits in requests.
        """
        self._tables.set_rules(rules)
        if self._frames is not None:
            self._frames.set_tables(
                [(prefix, rule.table, rule.denies_group) for prefix, rule in self._rules.items()]
            )

    def decide(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        groups: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
    ) -> Outcomes:
        """Decide checks in order; `groups` are the lengths of all-or-nothing groups of consecutive
        checks.

        A group is not charged at all when a rule with `denies_group` denies a member, or when the
        rule of a member is unknown. Members that would have passed get `UNCHARGED`. Empty `groups`
        means that every check is decided alone.

        Raises `ValueError` when lengths differ or a cost is negative.
        """
        if self._frames is not None and not (which and any(which)):
            outcomes = self._frames.decide(keys, costs, groups, now)
            if outcomes is not None:
                self._tables.room -= len(keys)
                if self._tables.room < 0:
                    self._tables.evict_to_bounds(0, now)
                return outcomes
        _check_costs(costs)
        if len(keys) == 1 and not which:
            return self._decide_one(keys, costs, now)
        if groups and (sum(groups) != len(keys) or min(groups) < 1):
            raise ValueError(f"groups must add up to {len(keys)} keys, got {list(groups)}")
        rows: list[Verdict] = []
        amounts: list[int] = []
        for start, end, is_group in spans(groups, len(keys)):
            if is_group:
                members = [
                    self._tables.member(keys[at], costs[at], carried(limits, which, at))
                    for at in range(start, end)
                ]
                rows += decide_group(members, now)
                amounts += [member.amount for member in members]
            else:
                for first, last, limit in runs(keys, limits, which, start, end):
                    member = self._tables.member(keys[first], 0, limit)
                    rows += decide_run(
                        member.table, keys[first:last], costs[first:last], limit, now
                    )
                    amounts += [member.amount] * (last - first)
        self._tables.evict_to_bounds(len(keys), now)
        return columns(rows, amounts)

    def decide_each(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        groups: Sequence[int],
        instants: list[int],
    ) -> Outcomes:
        """Decide checks that carry no limits, each at its own instant, in the given order.

        Equal to one call of `decide` per group; the members of a group share an instant. Raises
        `ValueError` as `decide` does.
        """
        if len(instants) != len(keys):
            raise ValueError(
                f"instants must be one per key, got {len(instants)} for {len(keys)} keys"
            )
        if self._frames is not None and instants:
            outcomes = self._frames.decide(keys, costs, groups, instants[0], instants)
            if outcomes is not None:
                self._tables.room -= len(keys)
                if self._tables.room < 0:
                    self._tables.evict_to_bounds(0, instants[-1])
                return outcomes
        if groups and sum(groups) != len(keys):
            raise ValueError(f"groups must add up to {len(keys)} keys, got {list(groups)}")
        decided = Outcomes()
        start = 0
        for size in groups or [1] * len(keys):
            end = start + size
            decided.extend(
                self.decide(keys[start:end], costs[start:end], [size], (), (), instants[start])
            )
            start = end
        return decided

    def _decide_one(self, keys: Sequence[bytes], costs: Sequence[int], now: int) -> Outcomes:
        """Decide a single check by the limit of its rule, which is the most frequent case."""
        rule = self._rules.get(keys[0][:ID_BYTES])
        if rule is None:
            return columns([UNKNOWN], [0])
        outcomes = rule.table.check_many(keys, costs, now)
        self._tables.evict_to_bounds(1, now)
        return outcomes

    @property
    def decide_lone(self) -> LoneDecider:
        """Function that decides a single check by the limit of its rule, at less cost than
        `decide`; it raises `ValueError` when the cost is negative."""
        return self._decide_lone if self._frames is None else self._frames.decide_lone

    def _decide_lone(
        self, key: bytes, cost: int, now: int, source: int
    ) -> tuple[int, int, int, int, int, int, int, int]:
        _check_costs((cost,))
        amount, verdict = 0, UNKNOWN
        rule = self._rules.get(key[:ID_BYTES])
        if rule is not None:
            amount = rule.table.limit.amount
            [verdict] = rule.table.verdicts((key,), (cost,), now)
        self._tables.evict_to_bounds(1, now)
        return verdict[0], amount, *verdict[1:], source

    def refund(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        ages_ns: Sequence[int],
        slot_ids: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
    ) -> Outcomes:
        """Refund charges; return the state of each key, and in `slot_ids` the refunded units.

        Empty `ages_ns` means charges made just now; empty `slot_ids` means no slots.
        """
        members = self._members(keys, costs, limits, which)
        ages_ns, slot_ids = ages_ns or [0] * len(members), slot_ids or [0] * len(members)
        refunded = [
            0 if each.table is None else each.table.refund_only(each.key, each.cost, now, *of_row)
            for each, *of_row in zip(members, ages_ns, slot_ids, strict=True)
        ]
        outcomes = peek(members, now)
        outcomes.slot_ids = refunded
        return outcomes

    def charge_now(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
    ) -> Outcomes:
        """Count costs of keys even above their limits; return whether the keys are within their
        limits.

        A charge of 0 counts nothing. Concurrency limits cannot be charged: for them, as for an
        unknown rule, nothing is counted and the code is `UNKNOWN_RULE`.
        Raises `ValueError` when a cost is negative.
        """
        _check_costs(costs)
        members = self._members(keys, costs, limits, which)
        rows = [
            UNKNOWN
            if member.table is None
            or (member.limit or member.table.limit).algorithm is Algorithm.CONCURRENCY
            else member.table.charge_now(member.key, member.cost, now, member.limit)
            for member in members
        ]
        self._tables.evict_to_bounds(len(keys), now)
        return columns(rows, [member.amount for member in members])

    def renew(
        self,
        keys: Sequence[bytes],
        slot_ids: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
    ) -> Outcomes:
        """Extend slots of concurrency limits by a whole period from now.

        A slot that has expired is not granted again; the result is a denial.
        """
        members = self._members(keys, [0] * len(keys), limits, which)
        rows = [
            UNKNOWN if member.table is None else member.table.renew(member.key, slot_id, now)
            for member, slot_id in zip(members, slot_ids, strict=True)
        ]
        return columns(rows, [member.amount for member in members])

    def reset(
        self, keys: Sequence[bytes], limits: Sequence[Limit], which: Sequence[int], now: int
    ) -> Outcomes:
        """Remove the counters of keys; return the state of each key afterwards."""
        members = self._members(keys, [0] * len(keys), limits, which)
        for member in members:
            if member.table is not None:
                member.table.reset(member.key)
        return peek(members, now)

    # -- moving between nodes ------------------------------------------------------------------

    def keys(self) -> list[bytes]:
        """Return all keys that have a counter."""
        return [*chain.from_iterable(self.key_slices(_KEYS_PER_SLICE))]

    def key_slices(self, size: int) -> Iterator[list[bytes]]:
        """Yield all keys that have a counter, up to `size` at a time.

        The engine may be used between two slices. Then keys that are counted meanwhile may be
        missing or occur twice.
        """
        visited: list[Table] = []
        while rest := [table for table in self._tables.all() if table not in visited]:
            visited.append(rest[0])
            yield from rest[0].key_slices(size)

    def has(self, key: bytes) -> bool:
        """Whether a key has a counter."""
        table = self._tables.find(key)
        return table is not None and table.has(key)

    def snapshot(self, keys: Sequence[bytes], now: int) -> Snapshot:
        """Return the counters of `keys` as numbers, to send them to another node; unused keys
        are omitted."""
        taken = Snapshot([], [], [], [], [])
        numbers: dict[Limit, int] = {}
        last, number = None, 0
        table, rule = None, b""
        for key in keys:
            if key[:ID_BYTES] != rule:  # Most keys have the rule of the key before them.
                table, rule = self._tables.find(key), key[:ID_BYTES]
            found = None if table is None else table.state(key, now)
            if found is None:
                continue
            state, limit, remote = found
            if limit is not last:  # Most keys have the limit of the key before them.
                if limit not in numbers:
                    numbers[limit] = len(numbers)
                    taken.limits.append(limit)
                last, number = limit, numbers[limit]
            taken.keys.append(key)
            taken.states.append(state)
            taken.which.append(number)
            taken.remote_counts.append(remote)
        if not any(taken.remote_counts):
            taken.remote_counts.clear()
        return taken

    def pack(self, keys: Sequence[bytes], now: int, *, with_unused: bool = True) -> PackedSnapshot:
        """Return the counters of `keys` in packed rows; unused keys have empty states, or are
        omitted."""
        if self._frames is not None:
            packed = self._frames.pack(keys, now, with_unused)
            if packed is not None:
                return PackedSnapshot(*packed, [])
        taken = self.snapshot(keys, now)
        if not with_unused:
            return PackedSnapshot.of(taken)
        rows = dict(zip(taken.keys, zip(taken.which, taken.states, strict=True), strict=True))
        remote = dict(zip(taken.keys, taken.remote_counts, strict=False))
        return PackedSnapshot(
            pack_rows([(key, *rows.get(key, (0, []))) for key in keys]),
            len(keys),
            taken.limits,
            [remote.get(key, {}) for key in keys] if remote else [],
        )

    def restore(self, snapshot: Snapshot, now: int) -> int:
        """Replace counters by those of a snapshot from another node; durations in it start at
        `now`.

        An empty state removes its key. Returns the number of rejected states, which no counter
        could have written.
        """
        refused = 0
        keys, states, limits = snapshot.keys, snapshot.states, snapshot.limits
        which, remote_counts = snapshot.which, snapshot.remote_counts

        def restore_one(at: int) -> None:
            nonlocal refused
            key, state, table = keys[at], states[at], self._tables.find(keys[at])
            if not state:
                if table is not None:
                    table.reset(key)
                return
            limit, remote = limits[which[at]], remote_counts[at] if remote_counts else {}
            if table is None:
                table = self._tables.ruleless(limit)
            try:
                table.restore(key, state, limit, remote, now)
            except BadState:
                refused += 1

        if self._frames is not None and not remote_counts:
            self._frames.restore(keys, states, limits, which, now, restore_one)
        else:
            for at in range(len(keys)):
                restore_one(at)
        self._tables.evict_to_bounds(len(keys), now)
        return refused

    def forget(self, keys: Sequence[bytes]) -> None:
        """Remove counters that were transferred to another node."""
        for key in keys if self._frames is None else self._frames.forget(keys):
            table = self._tables.find(key)
            if table is not None:
                table.reset(key)

    def charge(
        self,
        keys: Sequence[bytes],
        units: Sequence[int],
        ages_ns: Sequence[int],
        now: int,
        *,
        limits: Sequence[Limit] = (),
        which: Sequence[int] = (),
    ) -> None:
        """Count units of keys that were spent `ages_ns` ago, even above the limits.

        Skips keys that have no known rule, no counter and no limit in the request. The units of one
        key must be in order, oldest first, because a bucket drains in between. Raises `ValueError`
        when the lengths differ or a number is negative.
        """
        rows = list(zip(keys, units, ages_ns, strict=True))
        for at, (key, count, age_ns) in enumerate(rows):
            limit = carried(limits, which, at)
            if limit is None and key[:ID_BYTES] not in self._rules and not self.has(key):
                continue
            table = (
                self._tables.find(key)
                if limit is None
                else self._tables.member(key, 0, limit).table
            )
            if table is not None and count:
                table.charge(key, count, now, age_ns, limit)
        self._tables.evict_to_bounds(len(keys), now)

    # -- other data centers --------------------------------------------------------------------

    def merge_remote(
        self, writer: str, keys: Sequence[bytes], cells: Sequence[Sequence[int]], now: int
    ) -> int:
        """Merge the counts that another data center sent: per key, alternating window numbers and
        counts.

        Returns the number of rejected cells: future windows, or rules that are not shared.
        """
        refused = 0
        for key, numbers in zip(keys, cells, strict=True):
            rule = self._rules.get(key[:ID_BYTES])
            try:
                if rule is None:
                    refused += len(numbers) // 2
                else:
                    refused += rule.table.merge_remote(key, writer, numbers, now)
            except BadState:
                refused += -(-len(numbers) // 2)
        self._tables.evict_to_bounds(len(keys), now)
        return refused

    def local_counts(self, keys: Sequence[bytes], now: int) -> list[list[int]]:
        """Return the counts of this data center in the format of `merge_remote`."""
        counts: list[list[int]] = []
        for key in keys:
            rule = self._rules.get(key[:ID_BYTES])
            counts.append([] if rule is None else rule.table.local_counts(key, now))
        return counts

    def remote_counts(self, writer: str, keys: Sequence[bytes], now: int) -> list[list[int]]:
        """Return the counts received from another data center, in the format of `merge_remote`."""
        remote: list[list[int]] = []
        for key in keys:
            rule = self._rules.get(key[:ID_BYTES])
            remote.append([] if rule is None else rule.table.remote_counts(key, writer, now))
        return remote

    def used(self, key: bytes, now: int) -> int:
        """Return the units of a key that are in use; 0 when it has no counter."""
        table = self._tables.find(key)
        return 0 if table is None else table.used(key, now)

    def ceiling(self, key: bytes) -> int:
        """Return the maximum units that the rule of a key admits; 0 without a known rule."""
        rule = self._rules.get(key[:ID_BYTES])
        return 0 if rule is None else rule.table.limit.ceiling

    def _members(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
    ) -> list[Member]:
        return [
            self._tables.member(key, cost, carried(limits, which, at))
            for at, (key, cost) in enumerate(zip(keys, costs, strict=True))
        ]


def _check_costs(costs: Sequence[int]) -> None:
    if costs and min(costs) < 0:
        raise ValueError(f"cost must not be negative, got {min(costs)}; use refund instead")
