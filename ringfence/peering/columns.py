"""The columns a check travels in between the caller, the router and a connection.

A `Batch` is asked, a `Results` comes back; both keep the caller's order. `Target` is whoever can
decide a batch: a node behind a connection, or the engine in this very process.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, TypeAlias

from ringfence.errors import AccessDenied
from ringfence.limiter import Code, Limit, Outcome, Outcomes
from ringfence.wire import CheckId, Op, OutcomeRow, Source

__all__ = [
    "CODE",
    "LEASE",
    "SHED",
    "SOURCE",
    "Answered",
    "Asked",
    "Batch",
    "Done",
    "RefundFn",
    "TimedOut",
    "Row",
    "Shed",
    "Target",
    "Results",
    "Waiting",
    "age_ns_of",
    "empty_results",
    "joined_verdicts",
]

_LATER_NS = 50_000_000
"""By so much longer than the check, at most, a refund is taken to be on its way."""
Row: TypeAlias = OutcomeRow
"""One row of `Results`."""
CODE, LEASE, SOURCE = 0, 6, 7
"""Where a row has its code, its lease and its source."""


@dataclass(slots=True, weakref_slot=True)
class Batch:
    """Checks, charges, refunds or resets, column by column, as in `wire.Request`.

    Not frozen, for the reason that `wire.Request` is not. Only whoever makes one changes it.
    """

    op: Op
    keys: list[bytes]
    costs: list[int]
    groups: list[int] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    which: list[int] = field(default_factory=list)
    ages_ns: list[int] = field(default_factory=list)
    leases: list[int] = field(default_factory=list)
    ids: list[CheckId] = field(default_factory=list)
    """Per key, the identity of the same check in an earlier request; or empty."""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indexes: Sequence[int]) -> "Batch":
        """Cut out some rows, in rising order; rows of one group that are taken stay one group."""
        return Batch(
            self.op,
            [self.keys[i] for i in indexes],
            [self.costs[i] for i in indexes],
            self._runs_of(indexes) if self.groups else [],
            self.limits,
            [self.which[i] for i in indexes] if self.which else [],
            [self.ages_ns[i] for i in indexes] if self.ages_ns else [],
            [self.leases[i] for i in indexes] if self.leases else [],
            [self.ids[i] for i in indexes] if self.ids else [],
        )

    def group_numbers(self) -> list[int]:
        """Tell for each row which group it belongs to."""
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


@dataclass(slots=True)
class Results:
    """Outcomes with the `Source` of each row."""

    outcomes: Outcomes
    sources: list[int]
    refusal: AccessDenied | None = None
    """A member said that we may not ask this; the rows it was asked for stand as undecided."""

    def slice(self, start: int, stop: int) -> "Results":
        """Cut out the rows from `start` up to `stop`."""
        all_ = self.outcomes
        return Results(
            Outcomes(
                all_.codes[start:stop],
                all_.limits[start:stop],
                all_.remaining[start:stop],
                all_.retry_after_ns[start:stop],
                all_.reset_after_ns[start:stop],
                all_.delay_ns[start:stop],
                all_.leases[start:stop],
            ),
            self.sources[start:stop],
        )

    def rows(self) -> list[Row]:
        """Turn the columns into rows."""
        all_ = self.outcomes
        return list(
            zip(
                all_.codes,
                all_.limits,
                all_.remaining,
                all_.retry_after_ns,
                all_.reset_after_ns,
                all_.delay_ns,
                all_.leases,
                self.sources,
                strict=True,
            )
        )

    def row(self, index: int) -> Row:
        """Take one row out of the columns."""
        all_ = self.outcomes
        return (
            all_.codes[index],
            all_.limits[index],
            all_.remaining[index],
            all_.retry_after_ns[index],
            all_.reset_after_ns[index],
            all_.delay_ns[index],
            all_.leases[index],
            self.sources[index],
        )

    def put(self, index: int, outcome: Outcome, source: Source) -> None:
        """Set one row."""
        columns = self.outcomes
        columns.codes[index] = outcome.code
        columns.limits[index] = outcome.limit
        columns.remaining[index] = outcome.remaining
        columns.retry_after_ns[index] = outcome.retry_after_ns
        columns.reset_after_ns[index] = outcome.reset_after_ns
        columns.delay_ns[index] = outcome.delay_ns
        columns.leases[index] = outcome.lease
        self.sources[index] = source

    def put_row(self, index: int, row: Row) -> None:
        """Set one row, as `row` gives it."""
        all_ = self.outcomes
        (
            all_.codes[index],
            all_.limits[index],
            all_.remaining[index],
            all_.retry_after_ns[index],
            all_.reset_after_ns[index],
            all_.delay_ns[index],
            all_.leases[index],
            self.sources[index],
        ) = row

    def scatter(self, indexes: Sequence[int], rows: "Results") -> None:
        """Set the rows at `indexes` to `rows`, in order."""
        mine, theirs = self.outcomes, rows.outcomes
        for column, other in (
            (mine.codes, theirs.codes),
            (mine.limits, theirs.limits),
            (mine.remaining, theirs.remaining),
            (mine.retry_after_ns, theirs.retry_after_ns),
            (mine.reset_after_ns, theirs.reset_after_ns),
            (mine.delay_ns, theirs.delay_ns),
            (mine.leases, theirs.leases),
            (self.sources, rows.sources),
        ):
            for place, index in enumerate(indexes):
                column[index] = other[place]


def age_ns_of(asked_at: float, now: float) -> int:
    """How long ago a check that was asked for at `asked_at` can have been charged, in ns, when a
    refund that leaves `now` arrives.

    It counts from the owner's clock at its arrival, so a refund that is a little slower than the
    check was must not seem to be about something later.
    """
    passed_ns = max(0, round((now - asked_at) * 1e9))
    return passed_ns + min(passed_ns, _LATER_NS)


def empty_results(count: int) -> Results:
    """Make room for `count` rows, each to be filled."""
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


def joined_verdicts(parts: Sequence[tuple[Sequence[int], Results]], count: int) -> Results | None:
    """Put `count` rows together of parts, each with the places of its rows.

    None unless the parts have each row exactly once.
    """
    order = [index for indexes, _ in parts for index in indexes]
    place_of = dict(zip(order, range(count), strict=False))
    if len(order) != count or len(place_of) != count:
        return None
    places = [place_of[index] for index in range(count)]

    def join(columns: Iterable[list[int]]) -> list[int]:
        return [*map([*chain.from_iterable(columns)].__getitem__, places)]

    outcomes = [verdicts.outcomes for _, verdicts in parts]
    return Results(
        Outcomes(
            join([each.codes for each in outcomes]),
            join([each.limits for each in outcomes]),
            join([each.remaining for each in outcomes]),
            join([each.retry_after_ns for each in outcomes]),
            join([each.reset_after_ns for each in outcomes]),
            join([each.delay_ns for each in outcomes]),
            join([each.leases for each in outcomes]),
        ),
        join([verdicts.sources for _, verdicts in parts]),
    )


@dataclass(frozen=True, slots=True)
class Shed:
    """Answer of an overloaded target: asking another member would add load."""


SHED = Shed()

Done: TypeAlias = Callable[[Results | AccessDenied | Shed | None], None]
"""Called once with the verdicts of a batch, with the reason why it may not be asked for, with
`SHED` when the target is overloaded, or with None when it did not answer in time. After None it is
called again if the answer comes late.
"""


class Asked(Protocol):
    """A batch that was handed to a target."""

    def identify(self) -> CheckId | None:
        """Return the identity of the first row, for asking elsewhere too; the others follow.

        None when the batch has not left yet: then it is withdrawn, and never will.
        """


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A lone check waits no longer for the answer alone, which may come all the same."""

    when_answered: Callable[[Done], None]
    """Registers a callback for the answer, called at most once; at once when it has come."""
    asked: Asked | None = None
    row: int = 0
    """Place of the check in its batch."""
    is_given_up: bool = False
    """Whether no answer is expected any more."""
    is_shed: bool = False
    """Whether the member is overloaded, so that no answer will come."""


Answered: TypeAlias = Row | AccessDenied | TimedOut | None
"""What a lone check is told: its row, that we may not ask, that the answer takes too long, or that
nobody could be had."""

RefundFn: TypeAlias = Callable[[Batch, Sequence[int], Results, float], None]
"""Gives back what rows of a batch were charged by a check that began at an instant."""


class Waiting(Protocol):
    """Where a lone check that has joined others waits."""

    @property
    def asked_at(self) -> float:
        """When the first of them asked."""

    async def wait(self, give_back: RefundFn) -> Answered:
        """Wait for the answer to the check that joined last."""


class Target(Protocol):
    """Whoever decides a batch."""

    def answer_timeout(self, least: float, most: float) -> float:
        """Return the seconds within which an answer is expected, by observed round trips."""

    def is_alive(self) -> bool:
        """Whether it can be reached and has not been silent for a whole time-out."""

    def join(self, key: bytes, cost: int, within: float | None) -> Waiting | None:
        """Let a lone check leave with others; None when it must be asked for as a batch.

        After `within` seconds, when given, the wait ends as `TimedOut`.
        """

    def ask(self, batch: Batch, *, hops: int, stand_in: bool, done: Done) -> Asked | None:
        """Decide `batch` and call `done`, at once or later.

        None when the batch cannot be asked for twice: it was decided or refused at once, or here.
        """
