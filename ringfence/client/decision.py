"""The answer an application gets: a `Decision` per request, a `Status` per counter behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringfence.client.batch import Batch, Verdicts
from ringfence.limiter import Code
from ringfence.rules import Rule
from ringfence.wire import Source

__all__ = [
    "NO_RULE",
    "UNDECIDED",
    "Decision",
    "Status",
    "decide",
    "is_denied",
    "status_of",
    "too_late",
    "unlimited",
]

_OVER_SOFT = Code.OVER_SOFT.value
_DENIED = Code.DENIED.value
_NEVER = Code.NEVER.value
_UNKNOWN = Code.UNKNOWN_RULE.value
_SOURCES = tuple(Source)


@dataclass(slots=True, repr=False)
class Status:
    """What one counter said. Durations in seconds.

    Not frozen, nor is `Decision`: one of each is made per check, and freezing them costs more than
    all the rest of it. Nobody changes one.
    """

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

    def __repr__(self) -> str:
        return f"Status({_in_words(self)})"


@dataclass(slots=True, repr=False)
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

    def __repr__(self) -> str:
        return f"Decision({_in_words(self)})"

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def is_permanent(self) -> bool:
        """Denied, and no wait would help: the cost is larger than the limit could ever admit."""
        return not self.allowed and self.retry_after is None


NO_RULE = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)
UNDECIDED = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.POLICY)
"""What is said while nobody has told the rules: perhaps one applies."""


def unlimited(rule: Rule) -> Status:
    """What a rule without a limit says."""
    return Status(True, rule, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)


def status_of(rule: Rule, verdicts: Verdicts, index: int) -> Status:
    """Read one row of the columns as the application sees it."""
    columns = verdicts.outcomes
    code = columns.codes[index]
    is_denied = code == _DENIED or code == _NEVER  # noqa: PLR1714 - half the time of a tuple
    is_shadowed = is_denied and rule.shadow
    is_known = code != _UNKNOWN
    retry_after: float | None = 0.0
    if is_denied and not is_shadowed:
        retry_after = None if code == _NEVER else columns.retry_after_ns[index] / 1e9
    return Status(
        not is_denied or is_shadowed,
        rule,
        columns.limits[index] if is_known else None,
        columns.remaining[index] if is_known else None,
        retry_after,
        columns.reset_after_ns[index] / 1e9,
        columns.delay_ns[index] / 1e9,
        _SOURCES[verdicts.sources[index]],
        code == _OVER_SOFT,
        is_shadowed,
        not is_known,
    )


def decide(statuses: Sequence[Status], leases: Batch | None = None) -> Decision:
    """Make one answer of the statuses of a request; of none, that no rule applies."""
    if len(statuses) == 1:
        told = statuses[0]
        allowed, delay = told.allowed, told.delay
        over_soft, over_shadow = told.over_soft, told.over_shadow
    else:
        allowed = not is_denied(statuses)
        told = _tightest(statuses) if allowed else _slowest(statuses)
        delay = max([status.delay for status in statuses], default=0.0)
        over_soft = any([status.over_soft for status in statuses])
        over_shadow = any([status.over_shadow for status in statuses])
    return Decision(
        allowed,
        told.limit,
        told.remaining,
        0.0 if allowed else told.retry_after,
        told.reset_after,
        delay if allowed else 0.0,
        told.source,
        told.rule,
        over_soft,
        over_shadow,
        tuple(statuses) or (NO_RULE,),
        leases if allowed else None,
    )


def too_late(decision: Decision) -> Decision:
    """A turn that comes too late for the caller, as a denial that says when it would have been."""
    return replace(decision, allowed=False, retry_after=decision.delay, delay=0.0, leases=None)


def is_denied(statuses: Sequence[Status]) -> bool:
    """Denied by any plain rule, or by every quota rule of the request."""
    return any([not status.allowed for status in _plain(statuses)]) or _is_quota_spent(statuses)


def _in_words(told: Status | Decision) -> str:
    parts = ["allowed" if told.allowed else "denied"]
    if told.limit is not None:
        parts.append(f"{told.remaining} of {told.limit} left")
    if not told.allowed:
        wait = "for good" if told.retry_after is None else f"retry after {told.retry_after:g} s"
        parts.append(wait)
    if told.delay:
        parts.append(f"delay {told.delay:g} s")
    parts += [name for name in ("over_soft", "over_shadow") if getattr(told, name)]
    parts.append(f"from {told.source}")
    if told.rule is not None:
        parts.append(f"rule {_name_of(told.rule)}")
    return ", ".join(parts)


def _name_of(rule: Rule) -> str:
    levels = [key if value is None else f"{key}_{value}" for key, value in rule.path]
    return rule.name or ".".join([rule.domain, *levels])


def _plain(statuses: Sequence[Status]) -> list[Status]:
    return [status for status in statuses if status.rule is None or not status.rule.quota]


def _quotas(statuses: Sequence[Status]) -> list[Status]:
    return [status for status in statuses if status.rule is not None and status.rule.quota]


def _is_quota_spent(statuses: Sequence[Status]) -> bool:
    quotas = _quotas(statuses)
    return bool(quotas) and not any([status.allowed for status in quotas])


def _tightest(statuses: Sequence[Status]) -> Status:
    """The status to show of an allowed request."""
    return min(statuses, key=lambda status: _or_infinite(status.remaining), default=NO_RULE)


def _slowest(statuses: Sequence[Status]) -> Status:
    """The status to show of a denied request: of quota rules it is enough that one passes."""
    reasons = [status for status in _plain(statuses) if not status.allowed]
    if _is_quota_spent(statuses):
        reasons.append(min(_quotas(statuses), key=_wait_of))
    return max(reasons, key=_wait_of)


def _wait_of(status: Status) -> float:
    return _or_infinite(status.retry_after)


def _or_infinite(value: float | None) -> float:
    return float("inf") if value is None else value
