"""Decisions: one for each request, with a `Status` for each counter that the request matches."""

from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ringfence.errors import RingfenceError
from ringfence.limiter import Algorithm, Code
from ringfence.rules import Rule, format_limit
from ringfence.rules.descriptor_tree import place
from ringfence.wire import BY_POLICY, CODE, SOURCE, Batch, OutcomeRow, Results, Source

__all__ = [
    "NO_RULE",
    "UNDECIDED",
    "UNDECIDED_DENIED",
    "UNLIMITED",
    "Decision",
    "Numbers",
    "SlotUnavailable",
    "Status",
    "after_delay",
    "decide",
    "from_numbers",
    "is_denied",
    "numbers_of",
    "row_of",
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
_BY_POLICY = frozenset([source.value for source in BY_POLICY])
_NO_ROW: OutcomeRow = (0, 0, 0, 0, 0, 0, 0, 0)
"""Row of a decision that was made from several rows."""


class Status(Struct, frozen=True):
    """Result of a check at one counter. Durations are seconds."""

    allowed: bool
    """Whether this counter allows the request; a shadow rule always does."""
    rule: Rule | None
    """Rule that matches; None when no rule matches."""
    limit: int | None
    """Units per period; None without a limit."""
    remaining: int | None
    """Largest cost that would pass right now; None without a limit, and when it is unknown, because
    no node decided (source `policy` or `shed`)."""
    retry_after: float | None
    """Time after which the same cost passes: 0 when allowed, None when it never passes."""
    reset_after: float
    """Time without checks after which the counter is reset."""
    delay: float
    """Queue mode: time until the request may run."""
    source: Source
    """Source of the decision."""
    over_soft: bool = False
    """Whether it was allowed above the limit, within its soft margin."""
    over_shadow: bool = False
    """Whether a shadow rule would have denied it."""
    is_unknown: bool = False
    """Whether the owner does not know the rule. The request was allowed and not counted."""
    refunded: int | None = None
    """Units that a refund gave back to this counter; None for other calls."""
    is_refused: bool = False
    """Whether a node refused the refund, because it knows no charge of this token and the token
    lacks the scope `refund`."""

    def __repr__(self) -> str:
        return f"Status({_describe(self)})"


class _DecisionData(Struct, frozen=True):
    """Fields of a `Decision`; the properties of `Decision` document them."""

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
    slots: Batch | None = None
    refunded: int | None = None


class Decision:
    """Decision on one request; it is true in a condition when the request is allowed. Durations are
    seconds.

    With several counters, a denied decision has the numbers and the source of the counter with the
    longest wait, and an allowed one those of the counter with the least remaining. Counters with
    unknown remaining units come last.

    Each check makes a decision. To save time, it stores the row and converts the other fields when
    they are read. A decision is immutable.
    """

    __slots__ = ("_data", "_row", "_rule", "allowed")

    _data: _DecisionData | None
    _row: OutcomeRow
    _rule: Rule | None
    allowed: bool
    """Whether the request is allowed."""

    def __init__(
        self, rule: Rule | None, row: OutcomeRow, data: "_DecisionData | None" = None
    ) -> None:
        """Create a decision from a `row` of one counter, or from `data` of several counters.

        The compiled `_check_ops.decision_of` does this too.
        """
        if data is not None:
            allowed = data.allowed
        else:
            code = row[CODE]
            allowed = (
                code != _DENIED and code != _NEVER  # noqa: PLR1714 - half the time of a tuple
            ) or (rule is not None and rule.shadow)
        _set_rule(self, rule)
        _set_row(self, row)
        _set_data(self, data)
        _set_allowed(self, allowed)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a decision is immutable, so {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a decision is immutable, so {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return Decision, (self._rule, self._row, self._data)

    def __repr__(self) -> str:
        return f"Decision({_describe(self)})"

    def __bool__(self) -> bool:
        return self.allowed

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, Decision) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # Rules have metadata, which cannot be hashed.

    @property
    def limit(self) -> int | None:
        """Maximum units per period; None without a limit."""
        return self._fields.limit

    @property
    def remaining(self) -> int | None:
        """Largest cost that would be allowed now; None without a limit, and when it is unknown,
        because no node decided (source `policy` or `shed`)."""
        return self._fields.remaining

    @property
    def retry_after(self) -> float | None:
        """Time after which the same request is allowed: 0 when it is allowed now, None when it
        never is.

        For a concurrency limit it is an estimate, because slots may be released at any time.
        """
        return self._fields.retry_after

    @property
    def reset_after(self) -> float:
        """Time after which the counter is empty again if no more checks are made."""
        return self._fields.reset_after

    @property
    def delay(self) -> float:
        """Time until a request in queue mode may run; 0 after `acquire`, which waits for it."""
        return self._fields.delay

    @property
    def source(self) -> Source:
        """Source of the decision: a node, the local cache, a lease or the failure policy.

        `policy` and `shed` mean that no node has confirmed the call: a check or charge may not be
        counted, and a refund or reset may not be done. With several counters, `statuses` has the
        source of each.
        """
        return _SOURCES[self._row[SOURCE]] if self._data is None else self._data.source

    @property
    def rule(self) -> Rule | None:
        """The rule that decided; None when no rule matches."""
        return self._rule if self._data is None else self._data.rule

    @property
    def over_soft(self) -> bool:
        """Whether the request was allowed above the limit, within its soft margin."""
        return self._fields.over_soft

    @property
    def over_shadow(self) -> bool:
        """Whether a rule in shadow mode would have denied the request."""
        return self._fields.over_shadow

    @property
    def statuses(self) -> tuple[Status, ...]:
        """The status of each descriptor, in the order of the request."""
        return self._fields.statuses

    @property
    def slots(self) -> Batch | None:
        """Request that releases the acquired slots; None without slots."""
        return None if self._data is None else self._data.slots  # A single row never has slots.

    @property
    def slot_period(self) -> float:
        """Seconds for which the acquired slots are kept without a renewal; 0 without slots."""
        if self.slots is None:
            return 0.0
        limits = [status.rule.limit for status in self.statuses if status.rule is not None]
        return min(
            [
                limit.period
                for limit in limits
                if limit is not None and limit.algorithm is Algorithm.CONCURRENCY
            ]
        )

    @property
    def refunded(self) -> int | None:
        """Units that a refund gave back; None for other calls, and without a limit.

        It is 0 when nothing was spent, when the charge no longer counts, when the token may not
        refund it, and when no node answered in time. With several counters, it is the least.
        """
        return None if self._data is None else self._data.refunded

    @property
    def is_permanent(self) -> bool:
        """Whether the request can never be allowed, because its cost exceeds what the limit
        admits."""
        return not self.allowed and self.retry_after is None

    @property
    def _fields(self) -> _DecisionData:
        data = self._data
        if data is None:
            assert self._rule is not None
            data = _combine([status_of_row(self._rule, self._row)], None)
            _set_data(self, data)
        return data


# Setters of the slots take 60 % of the time of `object.__setattr__`.
_set_rule, _set_row, _set_data, _set_allowed = (
    getattr(Decision, name).__set__ for name in ("_rule", "_row", "_data", "allowed")
)


Numbers: TypeAlias = tuple[int | None, int | None, float | None, float, int]
"""Limit, remaining units, `retry_after`, `reset_after` and source of a denied decision. JSON can
contain them, so a process that gets an error as JSON can create it again."""


class SlotUnavailable(RingfenceError):
    """Error of `hold`: no slot of a concurrency limit was free in time, so the block did not
    run."""

    def __init__(self, decision: Decision | Numbers, shown: str = "") -> None:
        """`shown` is the text of the decision when the error is created again from its `args`."""
        super().__init__()
        self.decision = from_numbers(decision)
        """Denied decision."""
        self.args = (numbers_of(self.decision), shown or repr(self.decision))

    def __str__(self) -> str:
        remedy = (
            "the limit never has so many slots, so hold fewer"
            if self.decision.is_permanent
            else "wait longer with max_wait="
        )
        return (
            f"a slot must be free to hold it, got {self.args[1]}; {remedy}, or use "
            "raise_on_denied=False and look at the decision"
        )


def numbers_of(denied: Decision) -> Numbers:
    """Return the numbers of a denied decision, for the `args` of an error."""
    source = int(denied.source)
    return denied.limit, denied.remaining, denied.retry_after, denied.reset_after, source


def from_numbers(denied: Decision | Numbers) -> Decision:
    """Create a denied decision from its numbers; return a decision unchanged."""
    if isinstance(denied, Decision):
        return denied
    limit, remaining, retry_after, reset_after, source = denied
    status = Status(False, None, limit, remaining, retry_after, reset_after, 0.0, Source(source))
    return decide([status])


def row_of(decision: Decision) -> OutcomeRow:
    """Return the row from which the decision of a single counter was made."""
    return decision._row


NO_RULE = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)
UNDECIDED = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.POLICY)
"""Status while the rules are unknown, because a rule may match."""
UNDECIDED_DENIED = Status(False, None, None, None, 1.0, 0.0, 0.0, Source.POLICY)
"""The same if the failure policy denies; a retry may succeed after a second."""


def unlimited(rule: Rule) -> Status:
    """Create the status of a rule without a limit."""
    return Status(True, rule, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)


def status_of(rule: Rule, results: Results, index: int) -> Status:
    """Create the status of one check of a batch from the results of the batch."""
    return status_of_row(rule, results.row(index))


def status_of_row(rule: Rule, row: OutcomeRow) -> Status:
    """Create the status of one check from its result."""
    code, limit, remaining, retry_after_ns, reset_after_ns, delay_ns, _, source = row
    is_denied = code == _DENIED or code == _NEVER or code == _OVERDRAWN  # noqa: PLR1714 - faster
    is_shadowed = is_denied and rule.shadow
    is_known = code != _UNKNOWN
    retry_after: float | None = 0.0
    if is_denied and not is_shadowed:
        # An overdrawn limit of 0 never admits anything.
        is_never = code == _NEVER or (code == _OVERDRAWN and not retry_after_ns)
        retry_after = None if is_never else retry_after_ns / 1e9
    return Status(
        not is_denied or is_shadowed,
        rule,
        limit if is_known else None,
        remaining if is_known and source not in _BY_POLICY else None,
        retry_after,
        reset_after_ns / 1e9,
        delay_ns / 1e9,
        _SOURCES[source],
        code == _OVER_SOFT,
        is_shadowed,
        not is_known,
    )


def decide(statuses: Sequence[Status], slots: Batch | None = None) -> Decision:
    """Combine the statuses of a request into one decision; without a status, no rule matched."""
    return Decision(None, _NO_ROW, _combine(statuses, slots))


def after_delay(decision: Decision) -> Decision:
    """Create the decision that `acquire` returns when it has waited for the delay."""
    statuses = tuple([replace(each, delay=0.0) for each in decision.statuses])
    data = replace(decision._fields, delay=0.0, statuses=statuses)
    return Decision(decision._rule, decision._row, data)


def too_late(decision: Decision) -> Decision:
    """Create the denial of a request whose delay exceeds `max_wait`; `retry_after` is that
    delay."""
    statuses = tuple(
        [
            replace(each, allowed=False, retry_after=each.delay, delay=0.0) if each.delay else each
            for each in decision.statuses
        ]
    )
    data = replace(
        decision._fields,
        allowed=False,
        retry_after=decision.delay,
        delay=0.0,
        statuses=statuses,
        slots=None,
    )
    return Decision(None, _NO_ROW, data)


def _combine(statuses: Sequence[Status], slots: Batch | None) -> _DecisionData:
    if len(statuses) == 1:
        data = statuses[0]
        allowed, delay = data.allowed, data.delay
        over_soft, over_shadow = data.over_soft, data.over_shadow
    else:
        allowed = not is_denied(statuses)
        data = _tightest(statuses) if allowed else _slowest(statuses)
        delay = max([status.delay for status in statuses], default=0.0)
        over_soft = any([status.over_soft for status in statuses])
        over_shadow = any([status.over_shadow for status in statuses])
    refunded = [status.refunded for status in statuses if status.refunded is not None]
    return _DecisionData(
        allowed,
        data.limit,
        data.remaining,
        0.0 if allowed else data.retry_after,
        data.reset_after,
        delay if allowed else 0.0,
        data.source,
        data.rule,
        over_soft,
        over_shadow,
        tuple(statuses) or (NO_RULE,),
        slots if allowed else None,
        min(refunded, default=None),
    )


def is_denied(statuses: Sequence[Status]) -> bool:
    """Return whether a request is denied: by any rule outside quota mode, or by all its rules in
    quota mode."""
    return any([not status.allowed for status in _plain(statuses)]) or _is_quota_spent(statuses)


def _describe(data: Status | Decision) -> str:
    parts = ["allowed" if data.allowed else "denied"]
    if data.refunded is not None:
        parts.append(f"refunded {data.refunded}")
    if data.limit is not None:
        left = data.remaining
        parts.append(f"limit {data.limit}" if left is None else f"{left} of {_size_of(data)} left")
    if not data.allowed:
        wait = "permanently" if data.retry_after is None else f"retry after {data.retry_after:g} s"
        parts.append(wait)
    if data.delay:
        parts.append(f"delay {data.delay:g} s")
    parts += [name for name in ("over_soft", "over_shadow") if getattr(data, name)]
    parts.append(f"from {data.source}")
    if data.rule is not None:
        parts.append(_name_of(data.rule))
    return ", ".join(parts)


def _size_of(data: Status | Decision) -> int | None:
    """Return the remaining units of an unused counter; the limit alone for a part of a limit."""
    limit = None if data.rule is None else data.rule.limit
    return limit.ceiling if limit is not None and limit.amount == data.limit else data.limit


def _name_of(rule: Rule) -> str:
    if not rule.domain and rule.limit is not None:
        return f"limit {rule.name or format_limit(rule.limit)}"
    return f"rule {rule.name or place(rule.domain, rule.path)}"


def _plain(statuses: Sequence[Status]) -> list[Status]:
    return [status for status in statuses if status.rule is None or not status.rule.quota]


def _quotas(statuses: Sequence[Status]) -> list[Status]:
    return [status for status in statuses if status.rule is not None and status.rule.quota]


def _is_quota_spent(statuses: Sequence[Status]) -> bool:
    quotas = _quotas(statuses)
    return bool(quotas) and not any([status.allowed for status in quotas])


def _tightest(statuses: Sequence[Status]) -> Status:
    """Return the status with the least remaining units, or with the lowest limit if all are
    unknown; an allowed decision shows the numbers of this status."""
    least = min(statuses, key=lambda status: _or_infinite(status.remaining), default=NO_RULE)
    if least.remaining is None:
        return min(statuses, key=lambda status: _or_infinite(status.limit), default=NO_RULE)
    return least


def _slowest(statuses: Sequence[Status]) -> Status:
    """Return the status with the longest wait; a denied decision shows the numbers of this
    status."""
    reasons = [status for status in _plain(statuses) if not status.allowed]
    if _is_quota_spent(statuses):
        reasons.append(min(_quotas(statuses), key=_wait_of))
    return max(reasons, key=_wait_of)


def _wait_of(status: Status) -> float:
    return _or_infinite(status.retry_after)


def _or_infinite(value: float | None) -> float:
    return float("inf") if value is None else value


UNLIMITED = decide([NO_RULE])
"""Decision on a request that matches no rule."""
