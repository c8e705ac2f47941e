"""Counter tables of an engine: one table per rule, and one for checks without a known rule.

All tables together have at most `max_keys` keys and `max_bytes` bytes. The largest tables lose keys
first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from ringfence.limiter.backends import ReferenceTables, Tables
from ringfence.limiter.groups import ID_BYTES, Member
from ringfence.limiter.limit import MAX_CARRIED_SLOTS, Limit
from ringfence.limiter.table import Table

__all__ = ["BYTES_PER_KEY", "MIN_BYTES", "EngineRule", "RuleTable", "RuleTables"]

BYTES_PER_KEY = 512
"""Default of `max_bytes`, per key."""
MIN_BYTES = 64 << 20
"""Minimum of the default of `max_bytes`."""
_FREED_PART = 16
"""An eviction for bytes frees 1 / 16 of the bound, so that bytes are rarely counted."""
_MAX_FREED = 256 << 10
_MAX_EVICTED = 100
"""Maximum bytes and approximate number of keys that are freed at once: an eviction of one key can
take 25 us, and callers wait for it."""
_SLOT_BYTES = 40


class EngineRule(Struct, frozen=True):
    """Properties of a rule that the rate limiting engine needs, such as its limit."""

    limit: Limit
    denies_group: bool = True
    """Whether a denial by this rule denies the whole group; False for shadow and quota rules."""
    is_shared: bool = False
    """Whether other data centers count against the same limit."""


class RuleTable(Struct):
    """Table with the counters of a known rule."""

    table: Table
    denies_group: bool


class RuleTables:
    """Counter tables by rule, with bounds on the total number of keys and bytes."""

    def __init__(
        self, *, max_keys: int, max_bytes: int | None, first_slot_id: int, tables: Tables | None
    ) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, got {max_keys}")
        self.rules: dict[bytes, RuleTable] = {}
        """Tables by rule id, the first 8 bytes of a key. The dictionary object is never
        replaced."""
        self.backend = tables or ReferenceTables()
        self.on_conversion: list[Callable[[bytes], None]] = []
        """Callbacks of all tables, see `Table.on_conversion`."""
        self._max_keys = max_keys
        self._max_bytes = max_bytes or max(MIN_BYTES, BYTES_PER_KEY * max_keys)
        self._largest = _largest_entry(())
        """Maximum bytes that one check adds."""
        self._first_slot_id = first_slot_id
        self._ruleless: Table | None = None
        self.room = min(max_keys, self._max_bytes // self._largest)
        """New keys that certainly fit before keys and bytes must be counted again."""

    def __len__(self) -> int:
        return sum(map(len, self.all()))

    @property
    def bytes_in_use(self) -> int:
        """Approximate bytes of all counters with their keys."""
        return sum([table.bytes_in_use for table in self.all()])

    def sizes(self) -> tuple[dict[int, int], int]:
        """Return how many keys have counters: for each known rule by id, and for checks without
        a rule."""
        by_rule = {
            int.from_bytes(name, "big"): len(rule.table) for name, rule in self.rules.items()
        }
        return by_rule, len(self._ruleless or ())

    def all(self) -> Iterator[Table]:
        """Yield every counter table of the engine.

        The table without rule is first: its counters may move to the tables of new rules later.
        """
        if self._ruleless is not None:
            yield self._ruleless
        for rule in self.rules.values():
            yield rule.table

    def set_rules(self, rules: Mapping[int, EngineRule]) -> None:
        """Replace the rules. Rules that remain keep their tables, even with another limit.

        A new rule takes over the counters of checks that were decided by limits in requests.
        """
        old = dict(self.rules)
        # Slot ids are never reused, not even by tables that are removed and created again.
        self._first_slot_id = max(
            [self._first_slot_id, *(table.next_slot_id for table in self.all())]
        )
        self.rules.clear()
        for number, rule in rules.items():
            prefix = number.to_bytes(ID_BYTES, "big")
            known = old.get(prefix)
            if known is None:
                table = self._new_table(rule.limit, is_shared=rule.is_shared)
                if self._ruleless is not None:
                    self._ruleless.move_counters(prefix, table)
            else:
                table = known.table
                table.change_limit(rule.limit, is_shared=rule.is_shared)
            self.rules[prefix] = RuleTable(table, rule.denies_group)
        self._largest = _largest_entry([rule.limit for rule in rules.values()])
        self.room = min(self.room, 0)

    def find(self, key: bytes) -> Table | None:
        """Return the table in which a key is counted; None when this table does not exist yet."""
        rule = self.rules.get(key[:ID_BYTES])
        return self._ruleless if rule is None else rule.table

    def ruleless(self, limit: Limit) -> Table:
        """Return the counter table for checks without a known rule.

        When it is created, `limit` is the limit of the first check.
        """
        if self._ruleless is None:
            self._ruleless = self._new_table(limit, lists_keys=True)
        return self._ruleless

    def member(self, key: bytes, cost: int, limit: Limit | None) -> Member:
        """Return a check of an all-or-nothing group, with the counter table that decides it.

        A check that carries a limit always has a table, and its denial denies the group.
        """
        rule = self.rules.get(key[:ID_BYTES])
        if rule is not None:
            return Member(rule.table, key, cost, limit, rule.denies_group or limit is not None)
        if limit is None:
            return Member(None, key, cost, None, True)
        return Member(self.ruleless(limit), key, cost, limit, True)

    def evict_to_bounds(self, new_keys: int, now: int) -> None:
        """Evict keys from the largest tables when `new_keys` more may exceed the maximum number
        of keys or bytes."""
        self.room -= new_keys
        if self.room >= 0:
            return
        while (excess := len(self) - self._max_keys) > 0:
            max(self.all(), key=len).evict(excess, now)
        in_use = self.bytes_in_use
        if in_use > self._max_bytes:
            keys = _MAX_EVICTED * in_use // max(len(self), 1)
            spare = min(self._max_bytes // _FREED_PART, _MAX_FREED, keys)
            in_use = self._free(self._max_bytes - spare, now)
        self.room = min(self._max_keys - len(self), (self._max_bytes - in_use) // self._largest)

    def _free(self, most: int, now: int) -> int:
        """Evict keys until the counters use at most `most` bytes; return the bytes in use."""
        while (in_use := self.bytes_in_use) > most:
            fullest = max(self.all(), key=_bytes_in_use)
            before = len(fullest)
            fullest.evict(max(1, before * (in_use - most) // fullest.bytes_in_use), now)
            if len(fullest) == before:
                break
        return in_use

    def _new_table(
        self, limit: Limit, *, is_shared: bool = False, lists_keys: bool = False
    ) -> Table:
        table = self.backend.table(
            limit,
            max_keys=self._max_keys,
            first_slot_id=self._first_slot_id,
            is_shared=is_shared,
            lists_keys=lists_keys,
        )
        table.on_conversion = self.on_conversion
        return table


def _bytes_in_use(table: Table) -> int:
    return table.bytes_in_use


def _largest_entry(limits: Iterable[Limit]) -> int:
    """Return the most bytes that one check can add to the counters, under `limits` or a limit in
    the request."""
    slots = max([MAX_CARRIED_SLOTS, *(limit.slots for limit in limits)])
    return BYTES_PER_KEY + _SLOT_BYTES * slots
