"""Columns of a request and of its results: one value for each key, and the meaning of the values.

A `Batch` is sent in a `Request`, and `Results` come back in an `Answer`. Clients and nodes use the
same objects before encoding and after decoding, so that no column is copied. Rows keep the caller's
order.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import chain
from typing import TypeAlias

from msgspec import Struct, field

from ringfence.errors import AccessDenied
from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Code, Outcome, Outcomes

__all__ = [
    "BY_POLICY",
    "CODE",
    "SLOT_ID",
    "NO_ID",
    "SOURCE",
    "Batch",
    "CheckId",
    "Op",
    "OutcomeRow",
    "Results",
    "Source",
    "empty_results",
    "join_results",
]

CheckId: TypeAlias = tuple[int, int, int]
"""Identity of a check: session of the first sender, number of its request, row in that request."""
NO_ID: CheckId = (0, 0, 0)
"""Identity of a row that no earlier request contains."""
OutcomeRow: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""Row of results: code, limit, remaining, retry_after_ns, reset_after_ns, delay_ns, slot_id,
source."""
CODE, SLOT_ID, SOURCE = 0, 6, 7
"""Positions in an `OutcomeRow`."""


class Op(IntEnum):
    """Operation that a request performs on each of its keys."""

    CHECK = 0
    """Check and, if allowed, spend; cost 0 is a peek."""
    REFUND = 1
    """Refund `costs`; answered like a peek."""
    RESET = 2
    """Forget the counter of the key; answered like a peek."""
    CHARGE = 3
    """Spend unconditionally. The answer states whether the limit still holds. Cost 0 spends
    nothing."""
    RENEW = 4
    """Extend a slot of a concurrency limit by a period from now; denied when it has ended."""


class Source(IntEnum):
    """Origin of the decision on a row, such as the owner, the standby or a cache."""

    OWNER = 0
    """The owner of the counter decided; without nodes, the limiter itself is the owner."""
    STANDBY = 1
    """The owner could not be reached; its standby decided."""
    LOCAL = 2
    """No node could be reached; by `on_failure: local`, this process decided."""
    POLICY = 3
    """No node could be reached; the rule's `on_failure` allowed or denied."""
    NO_RULE = 4
    """No rule applies; no node was asked."""
    CACHE = 5
    """This process has cached a denial by the owner until its `retry_after`."""
    LEASE = 6
    """This process spent units that the owner had lent it."""
    SHED = 7
    """The member that decides is overloaded; the rule's `on_failure` allowed or denied."""

    def __str__(self) -> str:
        return self.name.lower()


BY_POLICY = (Source.POLICY, Source.SHED)
"""Sources of rows that the rule's `on_failure` decided without counting."""


class Batch(Struct, weakref=True):
    """Checks, charges, refunds or resets in columns.

    The class is not frozen, because freezing costs more time than decoding the fields. Only the
    code that created a batch may change it.
    """

    op: Op
    keys: list[bytes]
    costs: list[int]
    """Cost of each key."""
    groups: list[int] = field(default_factory=list)
    """Run lengths of all-or-nothing groups, with the sum `len(keys)`; empty when there are no
    groups."""
    limits: list[Limit] = field(default_factory=list)
    """Limits carried by ad-hoc checks and request overrides; empty when every rule is the owner's
    own."""
    which: list[int] = field(default_factory=list)
    """Limit of each key: 1 + an index into `limits`, or 0 for the owner's rule. Empty without
    `limits`."""
    ages_ns: list[int] = field(default_factory=list)
    """`REFUND` only: per key, the maximum time since the charge; empty otherwise."""
    slot_ids: list[int] = field(default_factory=list)
    """`REFUND` and `RENEW`: per key, the number of the slot to release or to renew, 0 for none.
    `CHECK`: per key, the ticket under which the sender waits for a slot when the check is denied, 0
    when it does not wait; with cost 0 the sender waits no longer. Empty otherwise."""
    ids: list[CheckId] = field(default_factory=list)
    """Identity of each check that this request repeats on another path; empty when no earlier
    request contained the checks."""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indexes: Sequence[int]) -> "Batch":
        """Return a batch with the rows at the ascending `indexes`, and with the limits of these
        rows. Rows of one group stay one group."""
        limits, which = self.limits, [self.which[i] for i in indexes] if self.which else []
        if len(limits) > 1 and len(which) < len(self.which):
            limits, which = _limits_in(limits, which)
        return Batch(
            self.op,
            [self.keys[i] for i in indexes],
            [self.costs[i] for i in indexes],
            self._runs_of(indexes) if self.groups else [],
            limits,
            which,
            [self.ages_ns[i] for i in indexes] if self.ages_ns else [],
            [self.slot_ids[i] for i in indexes] if self.slot_ids else [],
            [self.ids[i] for i in indexes] if self.ids else [],
        )

    def group_numbers(self) -> list[int]:
        """Return, for each row of the batch, the number of its all-or-nothing group."""
        if not self.groups:
            return list(range(len(self.keys)))
        return [number for number, run in enumerate(self.groups) for _ in range(run)]

    def _runs_of(self, indexes: Sequence[int]) -> list[int]:
        numbers = self.group_numbers()
        runs: list[int] = []
        last = -1
        for index in indexes:
            if numbers[index] == last:
                runs[-1] += 1
            else:
                runs.append(1)
                last = numbers[index]
        return runs


def _limits_in(limits: Sequence[Limit], which: Sequence[int]) -> tuple[list[Limit], list[int]]:
    """Return the limits that `which` refers to, and `which` for them; both empty without limits."""
    numbers = dict.fromkeys([number for number in which if number])
    places = {0: 0} | {number: place for place, number in enumerate(numbers, 1)}
    if not numbers:
        return [], []
    return [limits[number - 1] for number in numbers], [places[number] for number in which]


class Results(Struct):
    """Outcomes and sources of the decisions on a batch, in columns."""

    outcomes: Outcomes
    sources: list[int]
    """`Source` of each row."""
    refusal: AccessDenied | None = None
    """Error of a member that refused to decide, so that its rows are undecided; None without a
    refusal."""

    def slice(self, start: int, stop: int) -> "Results":
        """Return the results of the rows from `start` up to, but not including, `stop`."""
        all_ = self.outcomes
        return Results(
            Outcomes(
                all_.codes[start:stop],
                all_.limits[start:stop],
                all_.remaining[start:stop],
                all_.retry_after_ns[start:stop],
                all_.reset_after_ns[start:stop],
                all_.delay_ns[start:stop],
                all_.slot_ids[start:stop],
            ),
            self.sources[start:stop],
        )

    def rows(self) -> list[OutcomeRow]:
        """Return the results of all rows, row by row."""
        all_ = self.outcomes
        return list(
            zip(
                all_.codes,
                all_.limits,
                all_.remaining,
                all_.retry_after_ns,
                all_.reset_after_ns,
                all_.delay_ns,
                all_.slot_ids,
                self.sources,
                strict=True,
            )
        )

    def row(self, index: int) -> OutcomeRow:
        """Return the result of one row of a batch."""
        all_ = self.outcomes
        return (
            all_.codes[index],
            all_.limits[index],
            all_.remaining[index],
            all_.retry_after_ns[index],
            all_.reset_after_ns[index],
            all_.delay_ns[index],
            all_.slot_ids[index],
            self.sources[index],
        )

    def put(self, index: int, outcome: Outcome, source: Source) -> None:
        """Set the result of one row of a batch."""
        columns = self.outcomes
        columns.codes[index] = outcome.code
        columns.limits[index] = outcome.limit
        columns.remaining[index] = outcome.remaining
        columns.retry_after_ns[index] = outcome.retry_after_ns
        columns.reset_after_ns[index] = outcome.reset_after_ns
        columns.delay_ns[index] = outcome.delay_ns
        columns.slot_ids[index] = outcome.slot_id
        self.sources[index] = source

    def put_row(self, index: int, row: OutcomeRow) -> None:
        """Set the result of one row, in the format that `row` returns."""
        all_ = self.outcomes
        (
            all_.codes[index],
            all_.limits[index],
            all_.remaining[index],
            all_.retry_after_ns[index],
            all_.reset_after_ns[index],
            all_.delay_ns[index],
            all_.slot_ids[index],
            self.sources[index],
        ) = row

    def scatter(self, indexes: Sequence[int], rows: "Results") -> None:
        """Set the results of the rows at `indexes` to the results in `rows`, in order."""
        mine, theirs = self.outcomes, rows.outcomes
        for column, other in (
            (mine.codes, theirs.codes),
            (mine.limits, theirs.limits),
            (mine.remaining, theirs.remaining),
            (mine.retry_after_ns, theirs.retry_after_ns),
            (mine.reset_after_ns, theirs.reset_after_ns),
            (mine.delay_ns, theirs.delay_ns),
            (mine.slot_ids, theirs.slot_ids),
            (self.sources, rows.sources),
        ):
            for place, index in enumerate(indexes):
                column[index] = other[place]


def empty_results(count: int) -> Results:
    """Create results of `count` rows, which the caller fills row by row."""
    return Results(
        Outcomes(
            [Code.UNKNOWN_RULE] * count,
            [0] * count,
            [0] * count,
            [0] * count,
            [0] * count,
            [0] * count,
            [0] * count,
        ),
        [Source.POLICY] * count,
    )


def join_results(parts: Sequence[tuple[Sequence[int], Results]], count: int) -> Results | None:
    """Join partial results, each with the indexes of its rows, into `count` rows.

    Returns None unless each row occurs in exactly one part.
    """
    order = [index for indexes, _ in parts for index in indexes]
    place_of = dict(zip(order, range(count), strict=False))
    if len(order) != count or len(place_of) != count:
        return None
    places = [place_of[index] for index in range(count)]

    def join(columns: Iterable[list[int]]) -> list[int]:
        return [*map([*chain.from_iterable(columns)].__getitem__, places)]

    outcomes = [results.outcomes for _, results in parts]
    return Results(
        Outcomes(
            join([each.codes for each in outcomes]),
            join([each.limits for each in outcomes]),
            join([each.remaining for each in outcomes]),
            join([each.retry_after_ns for each in outcomes]),
            join([each.reset_after_ns for each in outcomes]),
            join([each.delay_ns for each in outcomes]),
            join([each.slot_ids for each in outcomes]),
        ),
        join([results.sources for _, results in parts]),
    )
