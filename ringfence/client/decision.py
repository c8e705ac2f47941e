"""The answer an application gets: a `Decision` per request, a `Status` per counter behind it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringfence.client.batch import Batch, Verdicts
from ringfence.limiter import Code
from ringfence.rules import Match, Rule
from ringfence.wire import Source

__all__ = ["Decision", "Status", "decide", "status_of", "NO_RULE"]


@dataclass(frozen=True, slots=True)
class Status:
    """What one counter said. Durations in seconds."""

    allowed: bool
    """Whether this counter lets the request pass; a shadow rule always does."""
    rule: Rule | None
    """The rule that was met; None when none applies."""
    limit: int | None
    """Units per period; None when nothing limits."""
    remaining: int | None
    """Largest cost that would pass right now; None when unknown or unlimited."""
    retry_after: float | None
    """0 when allowed; when denied, the same cost passes after it; None when it never would."""
    reset_after: float
    """After this long without checks the counter is as new."""
    delay: float
    """Queue mode: how long to wait for one's turn."""
    source: Source
    """Who decided."""
    over_soft: bool = False
    """Admitted over the limit, inside its soft margin."""
    over_shadow: bool = False
    """A shadow rule would have denied this."""
    is_unknown: bool = False
    """The owner does not know the rule; it was allowed uncounted."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request; true when allowed. Durations in seconds.

    With several counters the numbers are those of the counter that refused (the one to wait for
    longest), else of the one with the least remaining.
    """

    allowed: bool
    limit: int | None
    remaining: int | None
    retry_after: float | None
    """0 when allowed; when denied, the same request passes after it; None when it never would."""
    reset_after: float
    delay: float
    """Queue mode: how long to wait for one's turn; `acquire` waits it for you."""
    source: Source
    rule: Rule | None
    over_soft: bool
    over_shadow: bool
    statuses: tuple[Status, ...]
    """One per descriptor, in order."""
    leases: Batch | None = None
    """What `release` gives back; None when no concurrency limit was met."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def is_permanent(self) -> bool:
        """Denied, and no wait would help: the cost is larger than the limit could ever admit."""
        return not self.allowed and self.retry_after is None


NO_RULE = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)


def status_of(match: Match, verdicts: Verdicts, index: int) -> Status:
    """Read one row of the columns as the application sees it."""
    columns = verdicts.outcomes
    code = columns.codes[index]
    source = Source(verdicts.sources[index])
    rule = match.rule
    denied = code in (Code.DENIED, Code.NEVER)
    shadowed = denied and rule.shadow
    retry: float | None = 0.0
    if denied and not shadowed:
        retry = None if code == Code.NEVER else columns.retry_after_ns[index] / 1e9
    return Status(
        not denied or shadowed,
        rule,
        columns.limits[index],
        columns.remaining[index],
        retry,
        columns.reset_after_ns[index] / 1e9,
        columns.delay_ns[index] / 1e9,
        source,
        code == Code.OVER_SOFT,
        shadowed,
        code == Code.UNKNOWN_RULE,
    )


def decide(statuses: Sequence[Status], leases: Batch | None = None) -> Decision:
    """Make one answer of the statuses of a request."""
    if len(statuses) == 1:
        told = statuses[0]
        allowed = told.allowed
    else:
        allowed = not is_denied(statuses)
        told = _tightest(statuses, allowed)
    return Decision(
        allowed,
        told.limit,
        told.remaining,
        0.0 if allowed else told.retry_after,
        told.reset_after,
        max([status.delay for status in statuses], default=0.0) if allowed else 0.0,
        told.source,
        told.rule,
        any([status.over_soft for status in statuses]),
        any([status.over_shadow for status in statuses]),
        tuple(statuses),
        leases,
    )


def is_denied(statuses: Sequence[Status]) -> bool:
    """Denied by any plain rule, or by every quota rule of the request."""
    quotas = [status for status in statuses if status.rule is not None and status.rule.quota]
    others_deny = any(
        not status.allowed and not (status.rule is not None and status.rule.quota)
        for status in statuses
    )
    return others_deny or (bool(quotas) and all(not status.allowed for status in quotas))


def _tightest(statuses: Sequence[Status], allowed: bool) -> Status:
    if not allowed:
        return max(
            (status for status in statuses if not status.allowed),
            key=lambda status: _or_infinite(status.retry_after),
        )
    least: Callable[[Status], float] = lambda status: _or_infinite(status.remaining)  # noqa: E731
    return min(statuses, key=least, default=NO_RULE)


def _or_infinite(value: float | None) -> float:
    return float("inf") if value is None else value
