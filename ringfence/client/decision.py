"""The answer an application gets: a `Decision` per request, a `Status` per counter behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringfence.errors import RingfenceError
from ringfence.limiter import Code
from ringfence.rules import Rule
from ringfence.wire import CODE, SOURCE, Batch, OutcomeRow, Results, Source

__all__ = [
    "NO_RULE",
    "UNDECIDED",
    "UNLIMITED",
    "Decision",
    "SlotUnavailable",
    "Status",
    "decide",
    "is_denied",
    "status_of",
    "status_of_row",
    "too_late",
    "unlimited",
]

_OVER_SOFT = Code.OVER_SOFT.value
_DENIED = Code.DENIED.value
_NEVER = Code.NEVER.value
_UNKNOWN = Code.UNKNOWN_RULE.value
_OVERDRAWN = Code.OVERDRAWN.value
_SOURCES = tuple(Source)
_NO_ROW: OutcomeRow = (0, 0, 0, 0, 0, 0, 0, 0)
"""In a decision that does not come of a single row."""


@dataclass(slots=True, repr=False)
class Status:
    """What one counter said. Durations in seconds.

    Not frozen, since freezing costs more than all the rest of it. Nobody changes one.
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


@dataclass(slots=True)
class Told:
    """What a `Decision` says; its fields are explained there. Not frozen, as `Status` is not."""

    allowed: bool
    limit: int | None
    remaining: int | None
    retry_after: float | None
    reset_after: float
    delay: float
    source: Source
    rule: Rule | None
    over_soft: bool
    over_shadow: bool
    statuses: tuple[Status, ...]
    leases: Batch | None = None


class Decision:
    """The answer to one request; true when allowed. Durations in seconds.

    With several counters the numbers are those of the counter that refused (the one to wait for
    longest), else of the one with the least remaining.

    One is made per check, so it keeps the row it came in, and reads a number when it is asked for;
    all but the one that nearly everybody asks for. Nobody changes one.
    """

    __slots__ = ("_row", "_rule", "_told", "allowed")

    allowed: bool
    """Whether the request passes."""

    def __init__(self, rule: Rule | None, row: OutcomeRow, told: "Told | None" = None) -> None:
        """Of one counter, a `row` by its `rule`; of several, what they tell together.

        The compiled `rows.decisions` does this too.
        """
        self._rule = rule
        self._row = row
        self._told = told
        if told is not None:
            self.allowed = told.allowed
        else:
            code = row[CODE]
            self.allowed = (
                code != _DENIED and code != _NEVER  # noqa: PLR1714 - half the time of a tuple
            ) or (rule is not None and rule.shadow)

    def __repr__(self) -> str:
        return f"Decision({_in_words(self)})"

    def __bool__(self) -> bool:
        return self.allowed

    def __eq__(self, other: object) -> bool:
        return self._all == other._all if isinstance(other, Decision) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # Rules have metadata, which cannot be hashed.

    @property
    def limit(self) -> int | None:
        """Units per period; None when nothing limits."""
        return self._all.limit

    @property
    def remaining(self) -> int | None:
        """Largest cost that would pass right now; None when unknown or unlimited."""
        return self._all.remaining

    @property
    def retry_after(self) -> float | None:
        """0 when allowed; when denied, the same request passes after it; None if it never would.

        Of a concurrency limit an estimate: slots are released at any time.
        """
        return self._all.retry_after

    @property
    def reset_after(self) -> float:
        """After this long without checks the counter is as new."""
        return self._all.reset_after

    @property
    def delay(self) -> float:
        """Queue mode: how long to wait for one's turn; `acquire` waits it for you."""
        return self._all.delay

    @property
    def source(self) -> Source:
        """Who decided."""
        return _SOURCES[self._row[SOURCE]] if self._told is None else self._told.source

    @property
    def rule(self) -> Rule | None:
        """The rule that was met; None when none applies."""
        return self._rule if self._told is None else self._told.rule

    @property
    def over_soft(self) -> bool:
        """Admitted over the limit, inside its soft margin."""
        return self._all.over_soft

    @property
    def over_shadow(self) -> bool:
        """A shadow rule would have denied this."""
        return self._all.over_shadow

    @property
    def statuses(self) -> tuple[Status, ...]:
        """One per descriptor, in order."""
        return self._all.statuses

    @property
    def leases(self) -> Batch | None:
        """What `release` gives back; None when no concurrency limit was met."""
        return None if self._told is None else self._told.leases  # A row alone never has any.

    @property
    def is_permanent(self) -> bool:
        """Denied, and no wait would help: the cost is larger than the limit could ever admit."""
        return not self.allowed and self.retry_after is None

    @property
    def _all(self) -> "Told":
        told = self._told
        if told is None:
            assert self._rule is not None
            told = self._told = _tell([status_of_row(self._rule, self._row)], None)
        return told


class SlotUnavailable(RingfenceError):
    """No slot of a concurrency limit was free in time, so that the block of `hold` did not run."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(
            f"a slot must be free to hold it, got {decision!r}; wait longer with max_wait=, or use "
            "raise_on_denied=False and look at the decision"
        )
        self.decision = decision
        """The denial."""


NO_RULE = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)
UNDECIDED = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.POLICY)
"""What is said while nobody has told the rules: perhaps one applies."""


def unlimited(rule: Rule) -> Status:
    """What a rule without a limit says."""
    return Status(True, rule, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)


def status_of(rule: Rule, verdicts: Results, index: int) -> Status:
    """Read one row of the columns as the application sees it."""
    return status_of_row(rule, verdicts.row(index))


def status_of_row(rule: Rule, row: OutcomeRow) -> Status:
    """Read one row as the application sees it."""
    code, limit, remaining, retry_after_ns, reset_after_ns, delay_ns, _, source = row
    is_denied = code == _DENIED or code == _NEVER or code == _OVERDRAWN  # noqa: PLR1714 - faster
    is_shadowed = is_denied and rule.shadow
    is_known = code != _UNKNOWN
    retry_after: float | None = 0.0
    if is_denied and not is_shadowed:
        # Nothing ever passes an overdrawn limit of 0.
        is_never = code == _NEVER or (code == _OVERDRAWN and not retry_after_ns)
        retry_after = None if is_never else retry_after_ns / 1e9
    return Status(
        not is_denied or is_shadowed,
        rule,
        limit if is_known else None,
        remaining if is_known else None,
        retry_after,
        reset_after_ns / 1e9,
        delay_ns / 1e9,
        _SOURCES[source],
        code == _OVER_SOFT,
        is_shadowed,
        not is_known,
    )


def decide(statuses: Sequence[Status], leases: Batch | None = None) -> Decision:
    """Make one answer of the statuses of a request; of none, that no rule applies."""
    return Decision(None, _NO_ROW, _tell(statuses, leases))


def too_late(decision: Decision) -> Decision:
    """A turn that comes too late for the caller, as a denial that says when it would have been."""
    told = replace(decision._all, allowed=False, retry_after=decision.delay, delay=0.0, leases=None)
    return Decision(None, _NO_ROW, told)


def _tell(statuses: Sequence[Status], leases: Batch | None) -> Told:
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
    return Told(
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


UNLIMITED = decide([NO_RULE])
"""The answer to a request that meets no rule."""
