"""Groups of checks in one message: all-or-nothing groups, and runs of checks of one rule.

Decides what a group charges, and what its members get when the group is denied.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Code, Outcomes
from ringfence.limiter.reference import OVER_SOFT, Verdict, columns
from ringfence.limiter.table import Table

__all__ = [
    "ID_BYTES",
    "Member",
    "UNKNOWN",
    "carried",
    "decide_group",
    "decide_run",
    "peek",
    "runs",
    "spans",
]

ID_BYTES = 8
"""Length of the rule id at the start of a key."""
UNKNOWN: Verdict = (Code.UNKNOWN_RULE.value, 0, 0, 0, 0, 0)
_UNCHARGED = Code.UNCHARGED.value


class Member(Struct, frozen=True):
    """Check in an all-or-nothing group, with the counter table of its rule; None for an unknown
    rule."""

    table: Table | None
    key: bytes
    cost: int
    limit: Limit | None
    denies_group: bool

    @property
    def amount(self) -> int:
        """Amount of the limit that applies to the check; 0 when the rule is unknown."""
        if self.limit is not None:
            return self.limit.amount
        return 0 if self.table is None else self.table.limit.amount


def carried(limits: Sequence[Limit], which: Sequence[int], at: int) -> Limit | None:
    """Return the limit that the request contains for a check; None when it contains none."""
    return limits[which[at] - 1] if which and which[at] else None


def spans(groups: Sequence[int], total: int) -> Iterator[tuple[int, int, bool]]:
    """Split the checks of a message into groups of at least two, and single checks between
    groups."""
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


def runs(
    keys: Sequence[bytes], limits: Sequence[Limit], which: Sequence[int], start: int, end: int
) -> Iterator[tuple[int, int, Limit | None]]:
    """Split single checks into runs with the same rule and limit, each decided by one call of a
    counter table."""
    first = start
    while first < end:
        prefix = keys[first][:ID_BYTES]
        last = first + 1
        while (
            last < end
            and keys[last][:ID_BYTES] == prefix
            and (not which or which[last] == which[first])
        ):
            last += 1
        yield first, last, carried(limits, which, first)
        first = last


def decide_run(
    table: Table | None,
    keys: Sequence[bytes],
    costs: Sequence[int],
    limit: Limit | None,
    now: int,
) -> list[Verdict]:
    """Decide consecutive checks of one rule by one limit; the counter table is None for an
    unknown rule."""
    if table is None:
        return [UNKNOWN] * len(keys)
    return table.verdicts(keys, costs, now, limit)


def _ask(member: Member, cost: int, now: int) -> Verdict:
    """Check the key of a check in a group, with `cost` instead of the cost in the request."""
    return decide_run(member.table, (member.key,), (cost,), member.limit, now)[0]


def peek(members: Sequence[Member], now: int) -> Outcomes:
    """Return the state of the counter of each key, without changing it."""
    rows = [_ask(member, 0, now) for member in members]
    return columns(rows, [member.amount for member in members])


def _is_admitted(row: Verdict) -> bool:
    return row[0] <= OVER_SOFT


def decide_group(members: Sequence[Member], now: int) -> list[Verdict]:
    """Charge all checks of a group in order, or none if one is denied that denies the whole
    group."""
    rows = [_ask(member, member.cost, now) for member in members]
    blocked = any(
        member.denies_group and not _is_admitted(row)
        for member, row in zip(members, rows, strict=True)
    )
    if not blocked:
        return rows
    for member, row in zip(reversed(members), reversed(rows), strict=True):
        if member.table is not None and member.cost and _is_admitted(row):
            member.table.refund_only(member.key, member.cost, now, slot_id=row[5])
    return _denied_results(members, rows, now)


def _denied_results(members: Sequence[Member], rows: Sequence[Verdict], now: int) -> list[Verdict]:
    """Return the results of a denied group, whose charges were undone.

    A denied member is checked again for its own cost plus the cost of earlier members with the same
    key. The result is the same denial, with the time when the whole group fits.
    """
    answers: list[Verdict] = []
    requested: dict[bytes, int] = {}
    for member, row in zip(members, rows, strict=True):
        is_admitted = _is_admitted(row)
        if is_admitted or not member.cost:
            _, remaining, _, reset_after, _, _ = _ask(member, 0, now)
            code = _UNCHARGED if is_admitted else row[0]
            answers.append((code, remaining, row[2], reset_after, 0, 0))
        else:
            answers.append(_ask(member, requested.get(member.key, 0) + member.cost, now))
        if is_admitted:
            requested[member.key] = requested.get(member.key, 0) + member.cost
    return answers
