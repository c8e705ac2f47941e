"""All counters of one process: one table per rule, and checks that stand or fall together.

Which rule a request meets, and who owns its key, was decided before; the engine reads the rule's
id from the first 8 bytes of the key and takes the rest for granted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringfence.limiter.backends import ReferenceTables, Tables
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
from ringfence.limiter.limit import MAX_CARRIED_SLOTS, Algorithm, Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.reference import Verdict, columns
from ringfence.limiter.serialization import BadState, Snapshot
from ringfence.limiter.table import Table

__all__ = ["BYTES_PER_KEY", "Engine", "EngineRule", "LEAST_BYTES"]

BYTES_PER_KEY = 512
"""Default of `max_bytes`, per key."""
LEAST_BYTES = 64 << 20
_FREED_PART = 16
"""When there are too many bytes, one part of so many is freed, so that bytes are counted rarely."""
_MOST_FREED = 256 << 10
"""Bytes that are freed at once: an eviction costs up to 25 us, and other callers wait meanwhile."""
_SLOT_BYTES = 40


@dataclass(frozen=True, slots=True)
class EngineRule:
    """What the engine must know of a rule."""

    limit: Limit
    vetoes: bool = True
    """Whether its denial denies the whole group; not so for shadow and quota rules."""
    is_shared: bool = False
    """Whether other data centers count against the same limit."""


@dataclass(slots=True)
class _Kept:
    """A known rule and its counters."""

    table: Table
    vetoes: bool


class Engine:
    """The tables of one process, at most `max_keys` keys and `max_bytes` bytes in all.

    `limits` and `which` are those of a wire request: `which[i]` is 0 for the rule's own limit or
    1 + an index into `limits`; both are empty when no check carries a limit. A carried limit acts
    on the rule's own counters; when no rule has that id, on counters that all such checks share.

    `max_bytes` bounds an estimate of the bytes of counters and keys. Without it there are
    `BYTES_PER_KEY` for each of `max_keys`, at least `LEAST_BYTES`.
    """

    def __init__(
        self,
        *,
        max_keys: int,
        max_bytes: int | None = None,
        first_lease: int = 1,
        tables: Tables | None = None,
    ) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys: {max_keys} keys cannot be counted; give at least 1")
        self._max_keys = max_keys
        self._max_bytes = max_bytes or max(LEAST_BYTES, BYTES_PER_KEY * max_keys)
        self._largest = _largest_entry(())
        """Most bytes that a check adds."""
        self._first_lease = first_lease
        self._kind = tables or ReferenceTables()
        self._rules: dict[bytes, _Kept] = {}
        self._ruleless: Table | None = None
        self._frames = self._kind.frames(self._decide_group)
        self._room = min(max_keys, self._max_bytes // self._largest)
        """New keys that surely fit before keys and bytes must be counted again."""

    def __len__(self) -> int:
        return sum(map(len, self._tables()))

    @property
    def bytes_in_use(self) -> int:
        """Bytes that the counters take with their keys, roughly; the rooms in tables aside."""
        return sum([table.bytes_in_use for table in self._tables()])

    @property
    def evicted(self) -> int:
        """Keys that were dropped, from the tables there are now, although they were in use."""
        return sum(table.evicted for table in self._tables())

    def sizes(self) -> tuple[dict[int, int], int]:
        """How many keys each known rule has, by its id, and how many there are without a rule."""
        by_rule = {
            int.from_bytes(name, "big"): len(kept.table) for name, kept in self._rules.items()
        }
        return by_rule, len(self._ruleless or ())

    def set_rules(self, rules: Mapping[int, EngineRule]) -> None:
        """Know exactly these rules by id. A rule that stays keeps its counts, whatever its limit.

        Counts that carried limits have left under an id that is new here become the rule's.
        """
        old = self._rules
        # Lease ids are never used twice, not even by tables that come and go.
        self._first_lease = max(
            [self._first_lease, *(table.next_lease for table in self._tables())]
        )
        self._rules = {}
        for number, rule in rules.items():
            prefix = number.to_bytes(ID_BYTES, "big")
            kept = old.get(prefix)
            if kept is None:
                table = self._new_table(rule.limit, is_shared=rule.is_shared)
                if self._ruleless is not None:
                    self._ruleless.hand_over(prefix, table)
            else:
                table = kept.table
                table.change_limit(rule.limit, is_shared=rule.is_shared)
            self._rules[prefix] = _Kept(table, rule.vetoes)
        self._largest = _largest_entry([rule.limit for rule in rules.values()])
        self._room = min(self._room, 0)
        if self._frames is not None:
            self._frames.set_tables(
                [(prefix, kept.table, kept.vetoes) for prefix, kept in self._rules.items()]
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
        """Decide checks in order; `groups` are run lengths of all-or-nothing groups.

        When a member of a group is denied by a rule that vetoes, or its rule is unknown, nobody in
        the group stays charged: members that would have passed read `UNCHARGED`. Empty `groups`
        means that every check stands alone.
        Raises `ValueError` when the lengths contradict each other or a cost is negative.
        """
        if self._frames is not None and not (which and any(which)):
            outcomes = self._frames.decide(keys, costs, groups, now)
            if outcomes is not None:
                self._room -= len(keys)
                if self._room < 0:
                    self._keep_bounded(0, now)
                return outcomes
        if len(keys) == 1 and not which:
            return self._decide_one(keys, costs, now)
        if groups and (sum(groups) != len(keys) or min(groups) < 1):
            raise ValueError(f"groups: {list(groups)} do not add up to {len(keys)} keys")
        rows: list[Verdict] = []
        amounts: list[int] = []
        for start, end, is_group in spans(groups, len(keys)):
            if is_group:
                members = [
                    self._member(keys[at], costs[at], carried(limits, which, at))
                    for at in range(start, end)
                ]
                rows += decide_group(members, now)
                amounts += [member.amount for member in members]
            else:
                for first, last, limit in runs(keys, limits, which, start, end):
                    member = self._member(keys[first], 0, limit)
                    rows += decide_run(
                        member.table, keys[first:last], costs[first:last], limit, now
                    )
                    amounts += [member.amount] * (last - first)
        self._keep_bounded(len(keys), now)
        return columns(rows, amounts)

    def decide_each(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        groups: Sequence[int],
        instants: list[int],
    ) -> Outcomes:
        """Decide checks that carry no limits, each at its own instant, in the order given.

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
                self._room -= len(keys)
                if self._room < 0:
                    self._keep_bounded(0, instants[-1])
                return outcomes
        if groups and sum(groups) != len(keys):
            raise ValueError(f"groups: {list(groups)} do not add up to {len(keys)} keys")
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
        """Decide a lone check by its rule's own limit: the most frequent frame of all."""
        kept = self._rules.get(keys[0][:ID_BYTES])
        if kept is None:
            return columns([UNKNOWN], [0])
        outcomes = kept.table.check_many(keys, costs, now)
        self._keep_bounded(1, now)
        return outcomes

    def _decide_group(self, keys: Sequence[bytes], costs: Sequence[int], now: int) -> list[Verdict]:
        return decide_group(self._members(keys, costs, (), ()), now)

    def refund(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        ages_ns: Sequence[int],
        leases: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
    ) -> Outcomes:
        """Give back, as `Table.refund` does; answer with a peek at each key.

        Empty `ages_ns` stand for charges made just now, empty `leases` for no lease.
        """
        members = self._members(keys, costs, limits, which)
        for at, member in enumerate(members):
            if member.table is not None:
                age_ns = ages_ns[at] if ages_ns else 0
                lease = leases[at] if leases else 0
                member.table.give_back(member.key, member.cost, now, age_ns, lease)
        return peek(members, now)

    def charge_now(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
    ) -> Outcomes:
        """Count costs whatever the ceilings; answer whether each key is within its limit then.

        A charge of 0 counts nothing. Slots in flight cannot be charged: under a concurrency limit,
        as under an unknown rule, nothing is counted and the row reads `UNKNOWN_RULE`.
        Raises `ValueError` when a cost is negative.
        """
        if costs and min(costs) < 0:
            raise ValueError(f"cost: {min(costs)} is negative; use refund to give back")
        members = self._members(keys, costs, limits, which)
        rows = [
            UNKNOWN
            if member.table is None or _is_concurrency(member.limit or member.table.limit)
            else member.table.charge_now(member.key, member.cost, now, member.limit)
            for member in members
        ]
        self._keep_bounded(len(keys), now)
        return columns(rows, [member.amount for member in members])

    def renew(
        self,
        keys: Sequence[bytes],
        leases: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
    ) -> Outcomes:
        """Let leases of concurrency limits live for a whole period from now.

        A lease that has ended is not granted again: its row is denied.
        """
        members = self._members(keys, [0] * len(keys), limits, which)
        rows = [
            UNKNOWN if member.table is None else member.table.renew(member.key, lease, now)
            for member, lease in zip(members, leases, strict=True)
        ]
        return columns(rows, [member.amount for member in members])

    def reset(
        self, keys: Sequence[bytes], limits: Sequence[Limit], which: Sequence[int], now: int
    ) -> Outcomes:
        """Forget keys; answer with a peek at each."""
        members = self._members(keys, [0] * len(keys), limits, which)
        for member in members:
            if member.table is not None:
                member.table.reset(member.key)
        return peek(members, now)

    # -- moving between nodes ------------------------------------------------------------------

    def keys(self) -> list[bytes]:
        """All keys that have a counter."""
        return [key for table in self._tables() for key in table.all_keys()]

    def has(self, key: bytes) -> bool:
        """Whether a key has a counter."""
        table = self._table_of(key)
        return table is not None and table.has(key)

    def snapshot(self, keys: Sequence[bytes], now: int) -> Snapshot:
        """Write the counters of keys down; keys that are as new are left out."""
        taken = Snapshot([], [], [], [], [])
        numbers: dict[Limit, int] = {}
        heard_any = False
        for key in keys:
            table = self._table_of(key)
            found = None if table is None else table.state(key, now)
            if found is None:
                continue
            state, limit, heard = found
            if limit not in numbers:
                numbers[limit] = len(numbers)
                taken.limits.append(limit)
            taken.keys.append(key)
            taken.states.append(state)
            taken.which.append(numbers[limit])
            taken.heard.append(heard)
            heard_any = heard_any or bool(heard)
        if not heard_any:
            taken.heard.clear()
        return taken

    def restore(self, snapshot: Snapshot, now: int) -> int:
        """Put counters in place of those there are; durations in them began at `now`.

        An empty state forgets its key. Returns how many were refused, for no counter writes such
        numbers.
        """
        refused = 0
        for at, key in enumerate(snapshot.keys):
            state, limit = snapshot.states[at], snapshot.limits[snapshot.which[at]]
            table = self._table_of(key)
            if not state:
                if table is not None:
                    table.reset(key)
                continue
            if table is None:
                table = self._ruleless = self._new_table(limit, lists_keys=True)
            try:
                table.revive(key, state, limit, snapshot.heard[at] if snapshot.heard else {}, now)
            except BadState:
                refused += 1
        self._keep_bounded(len(snapshot.keys), now)
        return refused

    def forget(self, keys: Sequence[bytes]) -> None:
        """Drop counters: another node has them."""
        for key in keys:
            table = self._table_of(key)
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
        """Count units spent `ages_ns` ago, whatever the ceilings.

        Keys whose rule is unknown, that have no counter and carry no limit are passed over. Give
        the units of one key oldest first: what a bucket has lost since depends on their order.
        Raises `ValueError` when the lengths differ or a number is negative.
        """
        rows = list(zip(keys, units, ages_ns, strict=True))
        for at, (key, count, age_ns) in enumerate(rows):
            limit = carried(limits, which, at)
            if limit is None and key[:ID_BYTES] not in self._rules and not self.has(key):
                continue
            table = self._table_of(key) if limit is None else self._member(key, 0, limit).table
            if table is not None and count:
                table.charge(key, count, now, age_ns, limit)
        self._keep_bounded(len(keys), now)

    # -- other data centers --------------------------------------------------------------------

    def hear(
        self, writer: str, keys: Sequence[bytes], cells: Sequence[Sequence[int]], now: int
    ) -> int:
        """Take what another data center admitted: window number and count in turns, per key.

        Returns how many cells were refused: of windows to come, or of rules that are not shared.
        """
        refused = 0
        for key, numbers in zip(keys, cells, strict=True):
            kept = self._rules.get(key[:ID_BYTES])
            try:
                if kept is None:
                    refused += len(numbers) // 2
                else:
                    refused += kept.table.hear(key, writer, numbers, now)
            except BadState:
                refused += -(-len(numbers) // 2)
        self._keep_bounded(len(keys), now)
        return refused

    def told(self, keys: Sequence[bytes], now: int) -> list[list[int]]:
        """What this data center admitted of keys, as `hear` takes it; empty for nothing."""
        told: list[list[int]] = []
        for key in keys:
            kept = self._rules.get(key[:ID_BYTES])
            told.append([] if kept is None else kept.table.told(key, now))
        return told

    def heard(self, writer: str, keys: Sequence[bytes], now: int) -> list[list[int]]:
        """What another data center has told of keys, as `hear` takes it; empty for nothing."""
        heard: list[list[int]] = []
        for key in keys:
            kept = self._rules.get(key[:ID_BYTES])
            heard.append([] if kept is None else kept.table.heard(key, writer, now))
        return heard

    def used(self, key: bytes, now: int) -> int:
        """Units of a key in use; 0 when it has no counter."""
        table = self._table_of(key)
        return 0 if table is None else table.used(key, now)

    def ceiling(self, key: bytes) -> int:
        """Most units of a key that its rule admits; 0 when there is no such rule."""
        kept = self._rules.get(key[:ID_BYTES])
        return 0 if kept is None else kept.table.limit.ceiling

    def _table_of(self, key: bytes) -> Table | None:
        kept = self._rules.get(key[:ID_BYTES])
        return self._ruleless if kept is None else kept.table

    def _members(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
    ) -> list[Member]:
        return [
            self._member(key, cost, carried(limits, which, at))
            for at, (key, cost) in enumerate(zip(keys, costs, strict=True))
        ]

    def _member(self, key: bytes, cost: int, limit: Limit | None) -> Member:
        """Find the table of a key; a carried limit always finds one, and vetoes."""
        kept = self._rules.get(key[:ID_BYTES])
        if kept is not None:
            return Member(kept.table, key, cost, limit, kept.vetoes or limit is not None)
        if limit is None:
            return Member(None, key, cost, None, True)
        if self._ruleless is None:
            self._ruleless = self._new_table(limit, lists_keys=True)
        return Member(self._ruleless, key, cost, limit, True)

    def _new_table(
        self, limit: Limit, *, is_shared: bool = False, lists_keys: bool = False
    ) -> Table:
        return self._kind.table(
            limit,
            max_keys=self._max_keys,
            first_lease=self._first_lease,
            is_shared=is_shared,
            lists_keys=lists_keys,
        )

    def _tables(self) -> Iterator[Table]:
        for kept in self._rules.values():
            yield kept.table
        if self._ruleless is not None:
            yield self._ruleless

    def _keep_bounded(self, asked: int, now: int) -> None:
        """After a frame of `asked` checks, evict what is too much from the largest tables."""
        self._room -= asked
        if self._room >= 0:
            return
        while (excess := len(self) - self._max_keys) > 0:
            max(self._tables(), key=len).evict(excess, now)
        in_use = self.bytes_in_use
        if in_use > self._max_bytes:
            spare = min(self._max_bytes // _FREED_PART, _MOST_FREED)
            in_use = self._free(self._max_bytes - spare, now)
        self._room = min(self._max_keys - len(self), (self._max_bytes - in_use) // self._largest)

    def _free(self, most: int, now: int) -> int:
        """Evict keys until the counters take at most `most` bytes; return what they take then."""
        while (in_use := self.bytes_in_use) > most:
            fullest = max(self._tables(), key=_bytes_in_use)
            before = len(fullest)
            fullest.evict(max(1, before * (in_use - most) // fullest.bytes_in_use), now)
            if len(fullest) == before:
                break
        return in_use


def _is_concurrency(limit: Limit) -> bool:
    return limit.algorithm is Algorithm.CONCURRENCY


def _bytes_in_use(table: Table) -> int:
    return table.bytes_in_use


def _largest_entry(limits: Iterable[Limit]) -> int:
    """Most bytes that a check by one of these limits, or by a carried one, adds."""
    slots = max([MAX_CARRIED_SLOTS, *(limit.slots for limit in limits)])
    return BYTES_PER_KEY + _SLOT_BYTES * slots
