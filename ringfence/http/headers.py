"""Rate limit header fields of HTTP responses.

`RateLimit-Policy` and `RateLimit` are the structured fields of draft-ietf-httpapi-ratelimit-headers
(version 11); `X-RateLimit-*` is the older convention. If several limits apply, the fields describe
the limit that denied the request, or else the limit with the fewest units left. They omit limits in
shadow mode.
"""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from math import ceil

from ringfence.client.decision import Decision, Status
from ringfence.errors import ConfigError
from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit
from ringfence.rules import Rule, format_limit
from ringfence.wire import BY_POLICY, Source

__all__ = [
    "OUTAGE_HEADER",
    "HeaderStyle",
    "LimitHeaders",
    "Reset",
    "outage_of",
    "policy_name",
    "retry_after_seconds",
    "reported_status",
    "violated_policies",
]

OUTAGE_HEADER = "Ringfence-Outage"
"""Header that reports that no node decided. Its value is the fallback: `allow`, `deny`, `local`."""

# Module names, because an attribute of an enum class takes longer than the comparison.
_OWNER, _LOCAL = Source.OWNER, Source.LOCAL
_LARGEST = 10**15 - 1
"""Largest integer in a structured field (RFC 9651, section 3.3.1)."""
_REMEMBERED = 1024


class HeaderStyle(StrEnum):
    """Kind of rate limit header fields that a response gets."""

    IETF = "ietf"
    X = "x"
    BOTH = "both"
    NONE = "none"
    """No fields except `Retry-After`."""

    @classmethod
    def of(cls, name: str | None) -> "HeaderStyle":
        """Return the header style with this name; None means `none`. Raises `ConfigError` for an
        unknown name."""
        try:
            return cls("none" if name is None else name)
        except ValueError as error:
            raise ConfigError(
                f"header style must be one of {', '.join(cls)}, got {name!r}"
            ) from error


class Reset(StrEnum):
    """Meaning of the number in `X-RateLimit-Reset`."""

    SECONDS = "seconds"
    """Seconds from now, as Envoy sends it; independent of the client's clock."""
    EPOCH = "epoch"
    """Seconds since the Unix epoch, as GitHub sends it."""


class LimitHeaders:
    """Creates the rate limit header fields for decisions. Threads may share it."""

    def __init__(
        self,
        style: str | None = HeaderStyle.IETF,
        *,
        reset: str = Reset.SECONDS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`wall_clock` gives seconds since the Unix epoch.

        Raises `ConfigError` for an unknown style or reset.
        """
        self.style = HeaderStyle.of(style)
        self._has_ietf_fields = self.style in (HeaderStyle.IETF, HeaderStyle.BOTH)
        self._has_x_fields = self.style in (HeaderStyle.X, HeaderStyle.BOTH)
        if reset not in list(Reset):
            raise ConfigError(f"reset must be one of {', '.join(Reset)}, got {reset!r}")
        self._in_epoch = reset == Reset.EPOCH
        self._wall_clock = wall_clock
        self._policies: dict[int, tuple[Rule, str, str]] = {}
        self._last: tuple[Decision | None, list[tuple[str, str]]] = (None, [])
        """Fields of the last decision, which leases and cached denials often repeat."""

    def of(self, decision: Decision) -> list[tuple[str, str]]:
        """Return the header fields of a response to an allowed or refused request.

        They include `Retry-After` only when the request was refused and may pass later.
        """
        last, fields = self._last
        if decision is not last or self._in_epoch:
            fields = self._of(decision)
            self._last = decision, fields
        return [*fields]

    def _of(self, decision: Decision) -> list[tuple[str, str]]:
        fields: list[tuple[str, str]] = []
        wait = None if decision.allowed else retry_after_seconds(decision)
        if wait is not None:
            fields.append(("Retry-After", str(wait)))
        if not (self._has_ietf_fields or self._has_x_fields):
            return fields
        statuses = decision.statuses
        if len(statuses) > 1 or statuses[0].source is not _OWNER:
            outage = outage_of(decision)
            if outage is not None:
                fields.append((OUTAGE_HEADER, outage))
        reported = reported_status(decision)
        if reported is not None and reported.rule is not None:
            # A denial has the same wait in both: `Retry-After` must not end before `t`.
            window = ceil(reported.reset_after) if wait is None else wait
            if self._has_ietf_fields:
                self._add_ietf(fields, statuses, reported, reported.rule, window)
            if self._has_x_fields:
                self._add_x(fields, reported, wait, window)
        return fields

    def _add_ietf(
        self,
        fields: list[tuple[str, str]],
        statuses: Sequence[Status],
        reported: Status,
        rule: Rule,
        window: int,
    ) -> None:
        name, policy = self._policy(rule)
        if len(statuses) > 1:
            policy = ", ".join(
                dict.fromkeys(
                    [
                        self._policy(each.rule)[1]
                        for each in statuses
                        if each.rule and _is_reliable(each)
                    ]
                )
            )
        fields.append(("RateLimit-Policy", policy))
        remaining = reported.remaining or 0
        if remaining > _LARGEST or window > _LARGEST:
            remaining, window = min(remaining, _LARGEST), min(window, _LARGEST)
        fields.append(("RateLimit", f"{name};r={remaining};t={window}"))

    def _add_x(
        self, fields: list[tuple[str, str]], reported: Status, wait: int | None, window: int
    ) -> None:
        if self._in_epoch:
            window += ceil(self._wall_clock())
        fields.append(("X-RateLimit-Limit", str(reported.limit)))
        fields.append(("X-RateLimit-Remaining", str(reported.remaining)))
        fields.append(("X-RateLimit-Reset", str(window)))
        if wait is not None:
            fields.append(("X-RateLimit-Retry-After", str(wait)))

    def _policy(self, rule: Rule) -> tuple[str, str]:
        """Return a rule's public name, encoded for a header, and its entry in
        `RateLimit-Policy`."""
        known = self._policies.get(rule.id)
        if known is None or known[0] is not rule:
            name = _structured(policy_name(rule))
            known = (rule, name, name + ("" if rule.limit is None else _quota(rule.limit)))
            if len(self._policies) >= _REMEMBERED:
                self._policies.clear()
            self._policies[rule.id] = known
        return known[1], known[2]


def policy_name(rule: Rule) -> str:
    """Return the public name of a limit: its `name`, or else its path among the rules.

    An ad-hoc limit, which is in no rule, has its text as its name, such as `100/minute`.
    """
    if not rule.domain and not rule.name and rule.limit is not None:
        return format_limit(rule.limit)
    levels = [key if value is None else f"{key}_{value}" for key, value in rule.path]
    return rule.name or ".".join(levels)


def retry_after_seconds(decision: Decision) -> int | None:
    """Return the whole seconds until a retry may be allowed, rounded up, at least 1.

    Returns None if the request is allowed, or if a later retry would be denied too.
    """
    if decision.allowed or decision.retry_after is None:
        return None
    return max(1, ceil(decision.retry_after))


def outage_of(decision: Decision) -> str | None:
    """Return the applied failure policy (`allow`, `deny`, `local`); None if a node decided.

    With several policies, return that of a denial. If none denied, `allow` precedes `local`.
    """
    statuses = decision.statuses
    by_policy = [status for status in statuses if status.source in BY_POLICY]
    if not decision.allowed and not all([status.allowed for status in by_policy]):
        return "deny"
    has_local = any([status.source is _LOCAL for status in statuses])
    if has_local and not (by_policy and decision.allowed):
        return "local"
    return "allow" if by_policy else None


def reported_status(decision: Decision) -> Status | None:
    """Return the status of the limit that the header fields describe; None if there is no such
    limit.

    The fields describe no limit that is in shadow mode or that the failure policy decided.
    """
    statuses = decision.statuses
    if len(statuses) == 1:
        return statuses[0] if _is_reliable(statuses[0]) else None
    reported = [status for status in statuses if _is_reliable(status)]
    refusing = [] if decision.allowed else [status for status in reported if not status.allowed]
    if refusing:
        return max(refusing, key=_wait)
    return min(reported, key=lambda status: status.remaining or 0, default=None)


def violated_policies(decision: Decision) -> list[str]:
    """Return the names of the limits that denied the request."""
    if decision.allowed:
        return []
    return list(
        dict.fromkeys(
            [policy_name(each.rule) for each in decision.statuses if each.rule and not each.allowed]
        )
    )


def _is_reliable(status: Status) -> bool:
    """Whether clients may rely on the status of a limit: not in shadow mode, decided by a node."""
    rule = status.rule
    return (
        rule is not None
        and status.limit is not None
        and not rule.shadow
        and status.source not in BY_POLICY
    )


def _wait(status: Status) -> float:
    return float("inf") if status.retry_after is None else status.retry_after


def _quota(limit: Limit) -> str:
    """Return the quota and window parameters of a policy; the window is rounded up to whole
    seconds."""
    amount = f";q={min(limit.amount, _LARGEST)}"
    if limit.algorithm is Algorithm.CONCURRENCY:
        return f'{amount};qu="concurrent-requests"'
    return f"{amount};w={min(-(-limit.period_ns // NS_PER_SECOND), _LARGEST)}"


def _structured(text: str) -> str:
    """Encode text as a string of a structured header field. Non-ASCII and control characters become
    `?`."""
    # `http_sf` takes 9 us for a field, an f-string 0.15 us. The tests use it as the oracle.
    plain = "".join([letter if " " <= letter <= "~" else "?" for letter in text])
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
