"""Types of the request and response bodies of the HTTP API, with parsing and validation.

The OpenAPI document is generated from these types, so it always matches them.
"""

import re
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ringfence.client.decision import Decision, Status
from ringfence.errors import ConfigError
from ringfence.gateway.http.http_types import JSON, HttpProblem
from ringfence.gateway.http.slot_tokens import MAX_SLOT_TOKEN, SLOTS_WANTED
from ringfence.rules import Rule, parse_limit
from ringfence.rules.descriptor_tree import place
from ringfence.rules.limit_strings import LONGEST_TEXT
from ringfence.rules.periods import suggest
from ringfence.wire import Source

__all__ = [
    "MSGPACK",
    "CheckRequest",
    "CheckLimitRequest",
    "RefundLimitRequest",
    "RefundRequest",
    "CheckManyRequest",
    "DecisionBody",
    "DecisionsBody",
    "PeekRequest",
    "PeekLimitRequest",
    "PeekManyRequest",
    "ReleaseBody",
    "RenewBody",
    "ShouldAllowRequest",
    "ShouldAllowBody",
    "SlotsRequest",
    "StatusBody",
    "AcquireLimitRequest",
    "AcquireRequest",
    "decision_body",
    "read_body",
    "write_body",
]

MSGPACK = "application/msgpack"
_MSGPACKS = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
_LONGEST_BATCH = 1000
_place = lru_cache(1024)(place)
_parse_limit = lru_cache(1024)(parse_limit)
_SOURCES = [str(source) for source in Source]

Domain = Annotated[str, Meta(min_length=1, max_length=255, description="Namespace of the rules.")]
_Key = Annotated[str, Meta(min_length=1, max_length=255)]
_Value = Annotated[str, Meta(max_length=8192)]
Descriptors = Annotated[
    list[Annotated[dict[_Key, _Value], Meta(min_length=1, max_length=16)]],
    Meta(
        min_length=1,
        max_length=32,
        description="Properties of the request. A descriptor matches the rule that has exactly its "
        "keys, in the same order.",
        examples=[[{"client": "203.0.113.7"}]],
    ),
]
Cost = Annotated[int, Meta(ge=0, le=2**53 - 1, description="Units to spend; 0 spends nothing.")]
LimitText = Annotated[
    str,
    Meta(
        description="A limit that no rule contains, such as '100/minute' or '4 concurrent'; "
        f"at most {LONGEST_TEXT} characters.",
        examples=["100/minute", "300/3 hour fixed_window", "5/second burst 20"],
        extra_json_schema={"format": "ringfence-limit"},
    ),
]
LimitKey = Annotated[
    list[Annotated[str, Meta(max_length=8192)]],
    Meta(
        min_length=1,
        max_length=16,
        description="Key of the counter.",
        examples=[["user", "42"]],
    ),
]
Seconds = Annotated[float, Meta(description="Seconds.")]
MaxWait = Annotated[float, Meta(ge=0, le=3600, description="Seconds to wait at most.")]
Age = Annotated[
    float,
    Meta(
        ge=0,
        description="Seconds since the units were spent; units of a later window are not refunded. "
        "With 0, the newest units are refunded.",
    ),
]
SlotToken = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_SLOT_TOKEN,
        pattern="^[A-Za-z0-9_-]+$",
        description="The field `slots` of an allowed check or acquire.",
    ),
]


class PeekRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request body: peek at or reset the counters that the rules define for some descriptors."""

    domain: Domain
    descriptors: Descriptors


class CheckRequest(PeekRequest, forbid_unknown_fields=True):
    """Request body: check descriptors against the limits in the rules."""

    cost: Cost = 1


class AcquireRequest(CheckRequest, forbid_unknown_fields=True):
    """Request body: check descriptors against the rules, and wait until the check is allowed."""

    max_wait: MaxWait = 10.0


class PeekLimitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request body: peek at or reset the counter of a limit that is in the request, not in a
    rule."""

    limit: LimitText
    key: LimitKey

    def __post_init__(self) -> None:
        """Check the text of the limit. msgspec converts `ValueError` to its `ValidationError`."""
        try:
            _parse_limit(self.limit)
        except ConfigError as error:
            raise ValueError(str(error)) from error


class CheckLimitRequest(PeekLimitRequest, forbid_unknown_fields=True):
    """Request body: check a limit that is in the request, not in a rule."""

    cost: Cost = 1


class AcquireLimitRequest(CheckLimitRequest, forbid_unknown_fields=True):
    """Request body: check a limit that is in the request, and wait until the check is allowed."""

    max_wait: MaxWait = 10.0


class RefundRequest(CheckRequest, forbid_unknown_fields=True):
    """Request body: refund the counters that match some descriptors."""

    age: Age = 0.0


class RefundLimitRequest(CheckLimitRequest, forbid_unknown_fields=True):
    """Request body: refund the counter of a limit that is in the request."""

    age: Age = 0.0


class SlotsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request body: release or renew slots of concurrency limits."""

    slots: SlotToken


class CheckManyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request body: several checks, each decided separately."""

    checks: Annotated[list[CheckRequest], Meta(min_length=1, max_length=_LONGEST_BATCH)]


class PeekManyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request body: several peeks at counters."""

    checks: Annotated[list[PeekRequest], Meta(min_length=1, max_length=_LONGEST_BATCH)]


class ShouldAllowRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request body of `/shouldAllowRequest`: whether a client may act now."""

    clientId: Annotated[str, Meta(min_length=1, max_length=8192)]  # noqa: N815
    timestamp: Annotated[
        float | str | None,
        Meta(description="Ignored, because limits use the clock of the owner."),
    ] = None


class ShouldAllowBody(msgspec.Struct):
    """Response body of `/shouldAllowRequest`."""

    allowed: bool


class StatusBody(msgspec.Struct):
    """Part of a response body: status of one counter."""

    allowed: bool
    limit: int | None
    remaining: int | None
    retry_after: Seconds | None
    reset_after: Seconds
    delay: Seconds
    source: str
    rule: str | None
    over_soft: bool
    over_shadow: bool


class DecisionBody(StatusBody):
    """Response body: decision of one check.

    If several limits apply, the numbers are those of the denying limit with the longest wait, or
    else of the limit with the fewest units left.
    """

    permanent: bool
    """Whether the check is denied, and a later retry would be denied too."""
    statuses: list[StatusBody]
    """Statuses of the counters, one for each descriptor, in the order of the request."""
    refunded: int | UnsetType = UNSET
    """Answer of a refund: units that were given back; with several counters, the least."""
    slots: str | UnsetType = UNSET
    """Token of the acquired slots of concurrency limits, for `/v1/renew` and `/v1/release`."""
    slots_expire_after: Seconds | UnsetType = UNSET
    """Time after which these slots are free unless they are renewed."""
    hint: str | UnsetType = UNSET
    """Reason for which the call had no effect, and what to do."""


class ReleaseBody(msgspec.Struct):
    """Response body of `/v1/release`."""

    released: int
    """Units that are free again; 0 if the slots had ended."""
    hint: str | UnsetType = UNSET


class RenewBody(msgspec.Struct):
    """Response body of `/v1/renew`."""

    renewed: bool
    slots_expire_after: Seconds
    """Time after which the slots are free unless they are renewed again."""
    hint: str | UnsetType = UNSET


class DecisionsBody(msgspec.Struct):
    """Response body: decisions of several checks, in the order of the request."""

    decisions: list[DecisionBody]


_Body = TypeVar("_Body", bound=msgspec.Struct)
_BOUND = re.compile(r"Expected `(?P<kind>int|float)` (?P<bound>[<>]= \S+) - at `\$.(?P<place>.+)`")
_QUALITY = re.compile(r"\bq=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)(?![\d.])", re.IGNORECASE)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>[^`]+)")


def read_body(body: bytes, content_type: str | None, *kinds: type[_Body]) -> _Body:
    """Parse a request body as the first type in `kinds` whose fields match. Raises
    `HttpProblem`."""
    kind = JSON if content_type == JSON else _media_type(content_type)
    if kind != JSON and kind not in (*_MSGPACKS, ""):
        raise HttpProblem(415, f"content type must be {JSON} or {MSGPACK}, got {kind!r}")
    decode = msgspec.msgpack.decode if kind in _MSGPACKS else msgspec.json.decode
    raw: Any = None
    try:
        try:
            return decode(body, type=kinds[0])
        except msgspec.ValidationError:
            raw = _whole(decode(body))
            return msgspec.convert(raw, _kind_of(raw, kinds))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = _describe_bound(str(error), raw) or _reword_error(str(error), kinds)
        is_read = isinstance(error, msgspec.ValidationError)
        what = "invalid body" if is_read else "the body cannot be read"
        raise HttpProblem(400, f"{what}: {why}", cause="bad_body") from error


def write_body(value: object, accept: str | None, content_type: str | None) -> tuple[bytes, str]:
    """Encode a response in a format that the client accepts, otherwise in the request's format.

    Returns the encoded body and its content type.
    """
    wanted = content_type or ""
    if accept and ("msgpack" in accept or "json" in accept):
        wanted = accept if "," not in accept else _preferred(accept)
    if "msgpack" in wanted:
        return msgspec.msgpack.encode(value), MSGPACK
    return msgspec.json.encode(value), JSON


def _preferred(accept: str) -> str:
    """Return the range of an `Accept` header with the highest quality among those of our formats;
    the first one of several (RFC 9110, section 12.5.1)."""
    best, highest = "", 0.0
    for each in accept.split(","):
        kind, _, parameters = each.partition(";")
        quality = _QUALITY.search(parameters)
        weight = float(quality[1]) if quality else 1.0
        if weight > highest and ("msgpack" in kind or "json" in kind):
            best, highest = kind, weight
    return best


def decision_body(decision: Decision) -> DecisionBody:
    """Convert the decision of a check to a response body."""
    statuses = [_status_body(status) for status in decision.statuses]
    if len(statuses) == 1:  # Fast path: a single counter is the decisive one.
        alone = statuses[0]
        return DecisionBody(
            alone.allowed,
            alone.limit,
            alone.remaining,
            alone.retry_after,
            alone.reset_after,
            alone.delay,
            alone.source,
            alone.rule,
            alone.over_soft,
            alone.over_shadow,
            not alone.allowed and alone.retry_after is None,
            statuses,
        )
    return DecisionBody(
        decision.allowed,
        decision.limit,
        decision.remaining,
        decision.retry_after,
        decision.reset_after,
        decision.delay,
        _SOURCES[decision.source],
        _rule_place(decision.rule),
        decision.over_soft,
        decision.over_shadow,
        decision.is_permanent,
        statuses,
    )


def _status_body(status: Status) -> StatusBody:
    return StatusBody(
        status.allowed,
        status.limit,
        status.remaining,
        status.retry_after,
        status.reset_after,
        status.delay,
        _SOURCES[status.source],
        _rule_place(status.rule),
        status.over_soft,
        status.over_shadow,
    )


def _rule_place(rule: Rule | None) -> str | None:
    return None if rule is None or not rule.domain else _place(rule.domain, rule.path)


def _kind_of(raw: Any, kinds: tuple[type[_Body], ...]) -> type[_Body]:
    """Choose the type of a request body by a field that no other type requires."""
    for kind in kinds[1:]:
        telling = msgspec.structs.fields(kind)[0].name
        if isinstance(raw, dict) and telling in raw:
            return kind
    return kinds[0]


def _describe_bound(why: str, raw: Any) -> str:
    """Describe a number of the body `raw` beyond its bounds; empty for other errors of msgspec."""
    found = _BOUND.fullmatch(why)
    if found is None:
        return ""
    number = "a whole number" if found["kind"] == "int" else "a number"
    given = raw
    for step in re.findall(r"\w+", found["place"]):  # As in `checks[1].cost`.
        given = given[int(step) if isinstance(given, list) else step]
    return f"{found['place']} must be {number} {found['bound'].removesuffix('.0')}, got {given}"


def _reword_error(why: str, kinds: tuple[type[_Body], ...]) -> str:
    """Replace unclear error messages of msgspec by messages with the expected value."""
    what, _, place = why.removesuffix("`").partition(" - at `$.")
    if what == "Input data was truncated":
        # msgspec means both by this error.
        return (
            "it must be a whole object, got an empty or truncated body, or an escape such as "
            "\\ud800 without its second half"
        )
    if place.endswith("[...]") and what.startswith("Expected `str`"):
        _, is_long, most = what.partition("of length <= ")
        wanted = f" of at most {most} characters" if is_long else f", got {what.split('`')[3]}"
        return f"{place.removesuffix('[...]')} must have text values{wanted}"
    if place == "slots":
        return f"{SLOTS_WANTED}; send it as it was received"
    if place == "key" and "`array`" in what:
        return 'key is a list of strings, as in ["user", "42"]'
    if place.startswith("checks[") and what.endswith(("`limit`", "`key`")):
        return f"checks takes domain, descriptors and cost only; ask for a limit alone ({why})"
    unknown = _UNKNOWN_FIELD.match(what)
    fields = dict.fromkeys([name for kind in kinds for name in kind.__struct_fields__])
    name = "" if unknown is None else unknown["name"]
    reworded = (
        f"{name} must not be combined with the other fields; ask either with domain and "
        "descriptors, or with limit and key"
    )
    if name not in fields:
        reworded = f"{why}; {suggest(name, fields)}" if unknown else why
    return reworded


def _whole(raw: Any) -> Any:
    """Convert floats without a fraction to integers, because 3.0 is an integer in JSON Schema."""
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    if isinstance(raw, list):
        return [_whole(each) for each in raw]
    if isinstance(raw, dict):
        return {name: _whole(each) for name, each in raw.items()}
    return raw


def _media_type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()
