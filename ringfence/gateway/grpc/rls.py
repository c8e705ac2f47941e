"""Envoy's rate limit service on top of a limiter, without gRPC: one message in, one message out.

Decides the cost of each descriptor, the meaning of overrides, and the status of each counter. The
messages are those of the package `xds-protos`.

Rules with `fixed_window` count as `envoyproxy/ratelimit` does. Each descriptor is counted
separately, hits beyond the limit are counted too, and a peek is denied only if the count exceeds
the limit. With the other algorithms, the checks of a request are all or nothing, and a denied check
is not counted. For these algorithms, a `hits_addend` above 1 in a descriptor is a measured cost: it
is charged even beyond the limit.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import lru_cache
from math import ceil, inf
from typing import Any

from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import Struct
from msgspec.structs import replace

from ringfence import runtime
from ringfence.client.decision import NO_RULE, Decision, Status, decide
from ringfence.client.limiter import Limiter
from ringfence.gateway.grpc.rls_metadata import describe
from ringfence.gateway.process.metrics import LATE, decided
from ringfence.http.headers import LimitHeaders
from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Descriptor, Match, Rule
from ringfence.rules.periods import UNIT_NS, unit_of
from ringfence.wire import BY_POLICY

__all__ = ["BadRequest", "RateLimitService", "RlsSettings", "is_refund"]

_OK = RateLimitResponse.OK
_OVER_LIMIT = RateLimitResponse.OVER_LIMIT
_UNITS: dict[str, Any] = {
    name.lower(): number for name, number in RateLimitResponse.RateLimit.Unit.items() if number
}
_U32 = 2**32 - 1
_NEGATIVE_HITS_FIELD = 4
"""Field number of `RateLimitDescriptor.is_negative_hits`, which `xds-protos` lacks."""
_MAX_DESCRIPTORS = 128
_MAX_ENTRIES = 64
_LATE = 1.1
"""Number of deadlines after which an answer counts as late."""


class BadRequest(ValueError):
    """Error for an invalid rate limit request; the message states the reason."""


class RlsSettings(Struct, frozen=True):
    """Settings of Envoy's rate limit service."""

    deadline: float | None = None
    """Seconds until the rules' `on_failure` decides; None waits for the members without limit."""
    shadow: bool = False
    """Whether the overall code is always OK."""
    quota: bool = False
    """Whether every rule acts in quota mode."""
    dynamic_metadata: bool = False
    override_algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    charge_hits_addend: bool = True
    """Whether a descriptor's own `hits_addend` above 1 counts past limits of any algorithm."""


class _Operation(Enum):
    """Ways to count a descriptor of a rate limit request: check, hit, charge, refund or none."""

    CHECK = auto()
    """All checks of the request together, or none of them."""
    HIT = auto()
    """Separately, and also if it is denied."""
    CHARGE = auto()
    """Without regard to the remaining quota. Cost 0 asks whether the count exceeds the limit."""
    REFUND = auto()
    NONE = auto()
    """Not counted by any rule."""


_CHECKED = frozenset([_Operation.CHECK, _Operation.NONE])


class RateLimitService:
    """Implementation of the method `ShouldRateLimit` of Envoy's rate limit service."""

    def __init__(self, limiter: Limiter, headers: LimitHeaders, settings: RlsSettings) -> None:
        self.counters: Counter[str] = Counter()
        """Metric counts of both ports of this gateway; see `metrics`."""
        self._limiter = limiter
        self._headers = headers
        self._settings = settings
        self._late = _LATE * (inf if settings.deadline is None else settings.deadline)

    async def answer(self, message: bytes) -> bytes:
        """Decide an encoded `RateLimitRequest`; return the encoded response.

        Raises `DecodeError` and the errors of `should_rate_limit`.

        A request with text that is not UTF-8 is denied. A client of a proxy can cause such a
        request with a header, and Envoy by default lets requests pass after an error.
        """
        try:
            request = RateLimitRequest.FromString(message)
        except DecodeError:
            Empty.FromString(message)  # Raises `DecodeError` if the bytes are not a message.
            self.counters["refused_bad_body"] += 1
            denied = RateLimitResponse(overall_code=_OK if self._settings.shadow else _OVER_LIMIT)
            return bytes(denied.SerializeToString())
        response = await self.should_rate_limit(request)
        written: bytes = response.SerializeToString()
        return written

    async def should_rate_limit(
        self, request: RateLimitRequest, negative: Sequence[bool] = ()
    ) -> RateLimitResponse:
        """Decide one `RateLimitRequest`. Raises `BadRequest` and the errors of the limiter.

        `negative` states for each descriptor whether it is a refund, because the message type lacks
        this field.
        """
        began = runtime.current_time()
        asked = self.read(request)
        gives_back = negative or [is_refund(each) for each in request.descriptors]
        cost = request.hits_addend or 1
        operations = self._operations(request.domain, asked, cost, gives_back)
        if _CHECKED.issuperset(operations):
            decision = await self._check(request.domain, asked, cost, self._settings.deadline)
        elif operations == [_Operation.HIT]:
            decision = await self._hit(request.domain, asked, cost)
        else:
            decision = await self._mixed(request.domain, asked, cost, operations)
        self.count(decided(decision), runtime.current_time() - began)
        return self.response(request, decision)

    def count(self, result: str, took: float) -> None:
        """Count one answer by its result, and whether it was late."""
        self.counters[result] += 1
        if took > self._late:
            self.counters[LATE] += 1

    def response(self, request: RateLimitRequest, decision: Decision) -> RateLimitResponse:
        """Create the response to a request from its decision."""
        statuses = decision.statuses
        if self._settings.quota and _passes_as_quota(statuses):
            # Metadata only for requests that pass.
            decision = decide([each for each in statuses if each.allowed])
        return self._answer(request, decision, statuses)

    # -- deciding ------------------------------------------------------------------------------

    def _operations(
        self, domain: str, asked: list[Descriptor], cost: int, gives_back: Sequence[bool]
    ) -> list[_Operation]:
        """Choose for each descriptor of a request how it is counted: check, hit, charge or
        refund."""
        matches = self._limiter.rules.match(domain, asked)
        return [
            _Operation.REFUND if gives else self._operation(match, each.cost, cost)
            for each, match, gives in zip(asked, matches, gives_back, strict=True)
        ]

    def _operation(self, match: Match | None, own: int | None, cost: int) -> _Operation:
        if match is None:
            return _Operation.NONE
        limit = match.rule.limit
        if limit is None or limit.algorithm is Algorithm.CONCURRENCY:
            return _Operation.CHECK
        is_fixed = _is_fixed(match.rule)
        if own is not None and own > 1 and (is_fixed or self._settings.charge_hits_addend):
            return _Operation.CHARGE
        if is_fixed:
            return _Operation.CHARGE if own == 0 else _Operation.HIT
        return _Operation.CHECK

    async def _hit(self, domain: str, asked: list[Descriptor], cost: int) -> Decision:
        """Count the hit of a single descriptor: check it, and if the check is denied, charge it."""
        until = runtime.current_time() + (self._settings.deadline or inf)
        decision = await self._check(domain, asked, cost, self._settings.deadline)
        return await self.charge_uncounted(domain, asked, cost, decision, until)

    async def charge_uncounted(
        self, domain: str, asked: list[Descriptor], cost: int, decision: Decision, until: float
    ) -> Decision:
        """Charge the hit of a single descriptor if its check was denied; return the decision."""
        if not _is_uncounted(decision.statuses[0]):
            return decision
        costly = [_with_cost(each, cost) for each in asked]
        return await self._limiter.charge(domain, costly, timeout=_left(until))

    async def _mixed(
        self, domain: str, asked: list[Descriptor], cost: int, operations: Sequence[_Operation]
    ) -> Decision:
        """Count the descriptors of a request that need different operations, such as check and
        refund.

        Checks come last, because only they are all or nothing.
        """
        statuses = [NO_RULE] * len(asked)
        until = runtime.current_time() + (self._settings.deadline or inf)

        def put(places: Sequence[int], found: Sequence[Status]) -> None:
            for place, status in zip(places, found, strict=True):
                statuses[place] = status

        def chosen(operation: _Operation) -> list[int]:
            return [place for place, each in enumerate(operations) if each is operation]

        for place in chosen(_Operation.REFUND):
            statuses[place] = await self._refund(domain, _with_cost(asked[place], cost), until)
        hits = chosen(_Operation.HIT)
        if hits:
            alone = [_with_cost(asked[place], cost) for place in hits]
            decisions = await self._limiter.check_many(domain, alone, timeout=_left(until))
            put(hits, [each.statuses[0] for each in decisions])
        charges = [place for place in hits if _is_uncounted(statuses[place])]
        charges += chosen(_Operation.CHARGE)
        if charges:
            costly = [_with_cost(asked[place], cost) for place in charges]
            charged = await self._limiter.charge(domain, costly, timeout=_left(until))
            put(charges, charged.statuses)
        checks = chosen(_Operation.CHECK)
        if checks:
            together = [asked[place] for place in checks]
            put(checks, (await self._check(domain, together, cost, _left(until))).statuses)
        return decide(statuses)

    async def _refund(self, domain: str, descriptor: Descriptor, until: float) -> Status:
        """Refund units of a descriptor; deny only if its fixed window still exceeds the limit."""
        if not descriptor.entries:
            return NO_RULE
        cost = descriptor.cost or 0
        alone = Descriptor(descriptor.entries, descriptor.limit)
        status = (await self._limiter.refund(domain, alone, cost, timeout=_left(until))).statuses[0]
        if status.allowed:
            return status
        if _is_fixed(status.rule):
            return (await self._limiter.charge(domain, alone, 0, timeout=_left(until))).statuses[0]
        return replace(status, allowed=True, retry_after=0.0)

    async def _check(
        self, domain: str, asked: list[Descriptor], cost: int, within: float | None
    ) -> Decision:
        if not any([each.entries for each in asked]):
            return decide([NO_RULE] * len(asked))  # Without entries there is no key to count.
        if not self._settings.quota:
            return await self._limiter.check(domain, asked, cost, timeout=within)
        # Separately, so that one denial does not affect the others. Replaced rules are omitted.
        matches = self._limiter.rules.match(domain, asked)
        met = [place for place, match in enumerate(matches) if match is not None]
        if not met:  # The limiter counts and reports unmatched checks.
            return await self._limiter.check(domain, asked, cost, timeout=within)
        alone = [_with_cost(asked[place], cost) for place in met]
        decisions = await self._limiter.check_many(domain, alone, timeout=within)
        statuses = [NO_RULE] * len(asked)
        for place, each in zip(met, decisions, strict=True):
            statuses[place] = each.statuses[0]
        return decide(statuses)

    # -- reading -------------------------------------------------------------------------------

    def read(self, request: RateLimitRequest) -> list[Descriptor]:
        """Convert the descriptors of a request. Raises `BadRequest`."""
        if not request.domain:
            raise BadRequest("rate limit domain must not be empty")
        if not request.descriptors:
            raise BadRequest("rate limit descriptor list must not be empty")
        if len(request.descriptors) > _MAX_DESCRIPTORS:
            raise BadRequest(f"more than {_MAX_DESCRIPTORS} descriptors")
        return [self._descriptor(each) for each in request.descriptors]

    def _descriptor(self, asked: RateLimitDescriptor) -> Descriptor:
        if len(asked.entries) > _MAX_ENTRIES:
            raise BadRequest(f"a descriptor has more than {_MAX_ENTRIES} entries")
        return Descriptor(
            tuple([(entry.key, entry.value) for entry in asked.entries]),
            self._override(asked) if asked.HasField("limit") else None,
            asked.hits_addend.value if asked.HasField("hits_addend") else None,
        )

    def _override(self, asked: RateLimitDescriptor) -> Limit:
        if not asked.limit.unit:
            raise BadRequest("the limit of a descriptor has no unit")
        if asked.limit.unit not in RateLimitUnit.values():
            raise BadRequest(f"the limit of a descriptor has the unknown unit {asked.limit.unit}")
        unit = RateLimitUnit.Name(asked.limit.unit).lower()
        return _limit(asked.limit.requests_per_unit, unit, self._settings.override_algorithm)

    # -- answering -----------------------------------------------------------------------------

    def _answer(
        self, request: RateLimitRequest, decision: Decision, statuses: Sequence[Status]
    ) -> RateLimitResponse:
        passes = decision.allowed or self._settings.shadow
        response = RateLimitResponse(overall_code=_OK if passes else _OVER_LIMIT)
        for status, asked in zip(statuses, request.descriptors, strict=True):
            _fill_status(response.statuses.add(), status, asked)
        for name, value in self._headers.of(decision):
            if not (passes and name == "Retry-After"):
                response.response_headers_to_add.add(key=name.lower(), value=value)
        if self._settings.dynamic_metadata:
            response.dynamic_metadata.update(describe(request, statuses))
        return response


def _fill_status(out: Any, status: Status, asked: RateLimitDescriptor) -> None:
    """Write the status of one descriptor into the response."""
    out.code = _OK if status.allowed else _OVER_LIMIT
    rule = status.rule
    if rule is None:
        return
    if rule.limit is None:
        out.limit_remaining = _U32
        return
    if status.remaining is None:
        return  # Undecided: Envoy creates headers with numbers from each status with a limit.
    limit = rule.limit
    unit = rule.unit or unit_of(limit.period_ns)
    if asked.HasField("limit"):
        unit = RateLimitUnit.Name(asked.limit.unit).lower()
    out.current_limit.requests_per_unit = min(limit.amount, _U32)
    out.current_limit.unit = _UNITS.get(unit, 0)
    out.current_limit.name = rule.name
    if status.allowed and not status.over_shadow:
        out.limit_remaining = min(status.remaining, _U32)
    # Envoy truncates fractions, so round up: 0 seconds would be wrong.
    out.duration_until_reset.seconds = ceil(status.reset_after)


def _passes_as_quota(statuses: Sequence[Status]) -> bool:
    """Return whether a request passes in quota mode: some limit has quota left, or none matched."""
    limited = [each for each in statuses if each.limit is not None]
    return not limited or any([each.allowed for each in limited])


def is_refund(asked: RateLimitDescriptor) -> bool:
    """Return whether a descriptor gives hits back (`is_negative_hits`)."""
    unknown: Iterable[Any] = UnknownFieldSet(asked)  # type: ignore[assignment]
    return any(
        [field.field_number == _NEGATIVE_HITS_FIELD and bool(field.data) for field in unknown]
    )


def _is_fixed(rule: Rule | None) -> bool:
    limit = None if rule is None else rule.limit
    return limit is not None and limit.algorithm is Algorithm.FIXED_WINDOW


def _is_uncounted(status: Status) -> bool:
    """Return whether a node did not count a hit, because it exceeds the limit."""
    return (not status.allowed or status.over_shadow) and status.source not in BY_POLICY


def _left(until: float) -> float | None:
    """Return the remaining seconds until the deadline `until`; None if it is infinite."""
    return None if until == inf else max(0.0, until - runtime.current_time())


def _with_cost(asked: Descriptor, cost: int) -> Descriptor:
    return asked if asked.cost is not None else Descriptor(asked.entries, asked.limit, cost)


@lru_cache(1024)
def _limit(amount: int, unit: str, algorithm: Algorithm) -> Limit:
    return Limit.of_ns(amount, UNIT_NS[unit], algorithm)
