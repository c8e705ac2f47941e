"""All counters of one process: one table per rule, and checks that stand or fall together.

Which rule a request meets, and who owns its key, was decided before; the engine reads the rule's
id from the first 8 bytes of the key and takes the rest for granted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Code, Outcomes
from ringfence.limiter.reference import OVER_SOFT, Verdict, columns
from ringfence.limiter.table import Table

__all__ = ["Engine", "EngineRule"]

_ID_BYTES = 8
_UNKNOWN: Verdict = (Code.UNKNOWN_RULE.value, 0, 0, 0, 0, 0)
_UNCHARGED = Code.UNCHARGED.value


@dataclass(frozen=True, slots=True)
class EngineRule:
    """What the engine must know of a rule."""

    limit: Limit
    vetoes: bool = True
    """Whether its denial denies the whole group; not so for shadow and quota rules."""


@dataclass(slots=True)
class _Kept:
    """A known rule and its counters."""

    table: Table
    vetoes: bool


@dataclass(frozen=True, slots=True)
class _Member:
    """One check of a group, with the table that decides it; None when its rule is unknown."""

    table: Table | None
    key: bytes
    cost: int
    limit: Limit | None
    vetoes: bool

    @property
    def amount(self) -> int:
        """The amount of the limit to apply; 0 when the rule is unknown."""
        if self.limit is not None:
            return self.limit.amount
        return 0 if self.table is None else self.table.limit.amount


class Engine:
    """The tables of one process, at most `max_keys` keys in all.

    `limits` and `which` are those of a wire request: `which[i]` is 0 for the rule's own limit or
    1 + an index into `limits`; both are empty when no check carries a limit. A carried limit acts
    on the rule's own counters; when no rule has that id, on counters that all such checks share.
    """

    def __init__(self, *, max_keys: int, first_lease: int = 1) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys: {max_keys} keys cannot be counted; give at least 1")
        self._max_keys = max_keys
        self._first_lease = first_lease
        self._rules: dict[bytes, _Kept] = {}
        self._ruleless: Table | None = None
        self._room = max_keys
        """New keys that surely fit before the keys must be counted again."""

    def __len__(self) -> int:
        return sum(map(len, self._tables()))

    @property
    def evicted(self) -> int:
        """Keys that were dropped, from the tables there are now, although they were in use."""
        return sum(table.evicted for table in self._tables())

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
            prefix = number.to_bytes(_ID_BYTES, "big")
            kept = old.get(prefix)
            if kept is None:
                table = self._new_table(rule.limit)
                if self._ruleless is not None:
                    self._ruleless.hand_over(prefix, table)
            else:
                table = kept.table
                table.change_limit(rule.limit)
            self._rules[prefix] = _Kept(table, rule.vetoes)

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
        if len(keys) == 1 and not which:
            return self._decide_one(keys, costs, now)
        if groups and (sum(groups) != len(keys) or min(groups) < 1):
            raise ValueError(f"groups: {list(groups)} do not add up to {len(keys)} keys")
        rows: list[Verdict] = []
        amounts: list[int] = []
        for start, end, is_group in _spans(groups, len(keys)):
            if is_group:
                members = [
                    self._member(keys[at], costs[at], _carried(limits, which, at))
                    for at in range(start, end)
                ]
                rows += _decide_group(members, now)
                amounts += [member.amount for member in members]
            else:
                for first, last, limit in _runs(keys, limits, which, start, end):
                    member = self._member(keys[first], 0, limit)
                    rows += _decide_run(
                        member.table, keys[first:last], costs[first:last], limit, now
                    )
                    amounts += [member.amount] * (last - first)
        self._keep_bounded(len(keys), now)
        return columns(rows, amounts)

    def _decide_one(self, keys: Sequence[bytes], costs: Sequence[int], now: int) -> Outcomes:
        """Decide a lone check by its rule's own limit: the most frequent frame of all."""
        kept = self._rules.get(keys[0][:_ID_BYTES])
        if kept is None:
            return columns([_UNKNOWN], [0])
        outcomes = kept.table.check_many(keys, costs, now)
        self._keep_bounded(1, now)
        return outcomes

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
        return _peek(members, now)

    def reset(
        self, keys: Sequence[bytes], limits: Sequence[Limit], which: Sequence[int], now: int
    ) -> Outcomes:
        """Forget keys; answer with a peek at each."""
        members = self._members(keys, [0] * len(keys), limits, which)
        for member in members:
            if member.table is not None:
                member.table.reset(member.key)
        return _peek(members, now)

    def _members(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        limits: Sequence[Limit],
        which: Sequence[int],
    ) -> list[_Member]:
        return [
            self._member(key, cost, _carried(limits, which, at))
            for at, (key, cost) in enumerate(zip(keys, costs, strict=True))
        ]

    def _member(self, key: bytes, cost: int, limit: Limit | None) -> _Member:
        """Find the table of a key; a carried limit always finds one, and vetoes."""
        kept = self._rules.get(key[:_ID_BYTES])
        if kept is not None:
            return _Member(kept.table, key, cost, limit, kept.vetoes or limit is not None)
        if limit is None:
            return _Member(None, key, cost, None, True)
        if self._ruleless is None:
            self._ruleless = self._new_table(limit)
        return _Member(self._ruleless, key, cost, limit, True)

    def _new_table(self, limit: Limit) -> Table:
        return Table(limit, max_keys=self._max_keys, first_lease=self._first_lease)

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
        self._room = self._max_keys - len(self)


def _carried(limits: Sequence[Limit], which: Sequence[int], at: int) -> Limit | None:
    return limits[which[at] - 1] if which and which[at] else None


def _spans(groups: Sequence[int], total: int) -> Iterator[tuple[int, int, bool]]:
    """Cut a frame into groups of two and more, and the stretches of lone checks between them."""
    lone_from = at = 0
    for size in groups:
        if size > 1:
            if lone_from < at:
                yield lone_from, at, False
            yield at, at + size, True
            lone_from = at + size
        at += size
    if lone_from < total:
        yield lone_from, total, False


def _runs(
    keys: Sequence[bytes], limits: Sequence[Limit], which: Sequence[int], start: int, end: int
) -> Iterator[tuple[int, int, Limit | None]]:
    """Cut lone checks into runs of one rule and one limit, so that a run is one table call."""
    first = start
    while first < end:
        prefix = keys[first][:_ID_BYTES]
        last = first + 1
        while (
            last < end
            and keys[last].startswith(prefix)
            and (not which or which[last] == which[first])
        ):
            last += 1
        yield first, last, _carried(limits, which, first)
        first = last


def _decide_run(
    table: Table | None,
    keys: Sequence[bytes],
    costs: Sequence[int],
    limit: Limit | None,
    now: int,
) -> list[Verdict]:
    if table is None:
        return [_UNKNOWN] * len(keys)
    return table.verdicts(keys, costs, now, limit)


def _ask(member: _Member, cost: int, now: int) -> Verdict:
    """Charge `cost` to the member's key, whatever its own cost is."""
    return _decide_run(member.table, (member.key,), (cost,), member.limit, now)[0]


def _peek(members: Sequence[_Member], now: int) -> Outcomes:
    rows = [_ask(member, 0, now) for member in members]
    return columns(rows, [member.amount for member in members])


def _is_admitted(row: Verdict) -> bool:
    return row[0] <= OVER_SOFT


def _decide_group(members: Sequence[_Member], now: int) -> list[Verdict]:
    """Charge all members one after the other, or none when one that vetoes is denied."""
    rows = [_ask(member, member.cost, now) for member in members]
    blocked = any(
        member.vetoes and not _is_admitted(row) for member, row in zip(members, rows, strict=True)
    )
    if not blocked:
        return rows
    for member, row in zip(reversed(members), reversed(rows), strict=True):
        if member.table is not None and member.cost and _is_admitted(row):
            member.table.give_back(member.key, member.cost, now, lease=row[5])
    return _explain(members, rows, now)


def _explain(members: Sequence[_Member], rows: Sequence[Verdict], now: int) -> list[Verdict]:
    """Answer for a group whose charges were undone.

    A denied member is asked once more, for its own cost and what earlier members wanted of the
    same key together: that is denied for the same reason, and says exactly when, if ever, the
    whole group fits.
    """
    answers: list[Verdict] = []
    wanted: dict[bytes, int] = {}
    for member, row in zip(members, rows, strict=True):
        is_admitted = _is_admitted(row)
        if is_admitted or not member.cost:
            _, remaining, _, reset_after, _, _ = _ask(member, 0, now)
            code = _UNCHARGED if is_admitted else row[0]
            answers.append((code, remaining, row[2], reset_after, 0, 0))
        else:
            answers.append(_ask(member, wanted.get(member.key, 0) + member.cost, now))
        if is_admitted:
            wanted[member.key] = wanted.get(member.key, 0) + member.cost
    return answers
