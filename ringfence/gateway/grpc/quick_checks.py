"""Quick path of frequent rate limit requests: one plain check, without a task for each call.

A request is plain if it has one descriptor without a limit, cost or refund, and matches one rule
with a limit of units. Proxies repeat such messages byte for byte, so the counter of each recent
message is cached, and so are encoded responses. `rls` answers all other requests.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import Protocol, TypeAlias

from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from google.protobuf.message import DecodeError

from ringfence import runtime
from ringfence.client.decision import Decision, row_of
from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.gateway.grpc.rls import RateLimitService, is_refund
from ringfence.gateway.process.metrics import decided
from ringfence.limiter import Algorithm, Code
from ringfence.peering.routing import Router
from ringfence.peering.target import CheckAnswer, StartedCheck
from ringfence.rules import Rule, RuleSet
from ringfence.wire import BY_POLICY, CODE, SOURCE, OutcomeRow

__all__ = ["CheckStarter", "OpenCall", "QuickChecks"]

_MAX_RECENT, _LARGEST = 16_384, 192
"""Maximum of messages found most recently, and maximum bytes of a cached message. As many older
messages are kept until the next generation is full."""
_MAX_RESPONSES = 4096
"""Maximum number of encoded responses."""
_LAST_ALLOWED = Code.OVER_SOFT.value
_UNKNOWN = Code.UNKNOWN_RULE.value
_BY_POLICY = frozenset([source.value for source in BY_POLICY])


class OpenCall(Protocol):
    """Call that is answered later."""

    check: StartedCheck | None
    """Check to cancel when the client cancels the call."""

    def answer(self, message: bytes) -> None:
        """Send the response."""

    def resume(self, answer: Callable[[], Coroutine[object, object, bytes]]) -> None:
        """Run the rest of the call in a task, and send its response or its error."""

    def fail(self, error: Exception) -> None:
        """Answer the call with an error."""


class CheckStarter(Protocol):
    """Client of a cluster that can start checks without a task; `Cluster` is one."""

    local_cache: LocalCache | None
    router: Router

    @property
    def rules(self) -> RuleSet:
        """Rules against which requests are matched."""


@dataclass(frozen=True, slots=True)
class _Counter:
    """Counter of a plain message."""

    rule: Rule
    key: bytes
    cost: int
    is_hit: bool
    """Whether a denied check is charged afterwards, as fixed windows of Envoy count."""


_Known: TypeAlias = dict[bytes, _Counter | None]
"""Counters by message; None for a message that is not plain."""


class _QuickCheck(StartedCheck):
    """Check of one call on the quick path."""

    __slots__ = ("began", "call", "checks", "counter", "message")

    def __init__(
        self, checks: "QuickChecks", call: OpenCall, message: bytes, counter: _Counter, began: float
    ) -> None:
        self.checks = checks
        self.call = call
        self.message = message
        self.counter = counter
        self.began = began

    def on_answer(self, answer: CheckAnswer) -> None:
        """Send the response of the call, or let a task ask again or charge."""
        try:
            self.checks.finish(self, answer)
        except Exception as error:  # noqa: BLE001 - a bug must end one call only.
            self.call.fail(error)


class QuickChecks:
    """Starter of plain checks; their calls are answered when the owners answer."""

    def __init__(
        self, service: RateLimitService, cluster: CheckStarter, deadline: float | None
    ) -> None:
        """`deadline` is that of `RlsSettings`."""
        self._service = service
        self._cluster = cluster
        self._deadline = deadline
        self._now = runtime.clock()
        self._rules: RuleSet | None = None
        self._recent: _Known = {}
        self._older: _Known = {}
        self._responses: dict[tuple[int, int, int, int, int], tuple[bytes, str]] = {}
        """Encoded responses and their names in the metrics, by the identity of the rule, code,
        remaining units, seconds until the reset, and source."""

    def begin(self, message: bytes, call: OpenCall) -> bool:
        """Start the check of a plain message; return False when `rls` must answer the call."""
        if self._cluster.rules is not self._rules:
            self._rules = self._cluster.rules
            self._recent, self._older, self._responses = {}, {}, {}
        counter = self._recent.get(message)
        if counter is None:
            counter = self._find(message)
            if counter is None:
                return False
        check = _QuickCheck(self, call, message, counter, self._now())
        cache = self._cluster.local_cache
        if cache is not None:
            known = cache.decide("", None, counter.rule, counter.key, counter.cost)
            if known is not None:
                check.on_answer(row_of(known))
                return True
        call.check = check
        if self._cluster.router.start(counter.key, counter.cost, self._deadline, check):
            return True
        call.check = None
        return False

    def finish(self, check: _QuickCheck, answer: CheckAnswer) -> None:
        """Send the response of a check, or start a task that asks again or charges."""
        if isinstance(answer, tuple) and (
            answer[CODE] <= _LAST_ALLOWED
            or (
                answer[CODE] != _UNKNOWN
                and (not check.counter.is_hit or answer[SOURCE] in _BY_POLICY)
            )
        ):
            check.call.check = None
            response, result = self._response(check, answer)
            self._service.count(result, self._now() - check.began)
            check.call.answer(response)
        else:
            check.call.resume(partial(self._resume, check, answer))

    async def _resume(self, check: _QuickCheck, answer: CheckAnswer) -> bytes:
        """Decide a check that its owner did not decide or know, or charge a denied hit."""
        row = await check.settle(answer)
        if row[CODE] == _UNKNOWN:
            return await self._service.answer(check.message)
        counter = check.counter
        request = RateLimitRequest.FromString(check.message)
        decision = Decision(counter.rule, row)
        if counter.is_hit:
            decision = await self._service.charge_uncounted(
                request.domain,
                self._service.read(request),
                counter.cost,
                decision,
                check.began + (self._deadline or inf),
            )
        self._service.count(decided(decision), self._now() - check.began)
        response: bytes = self._service.response(request, decision).SerializeToString()
        return response

    def _response(self, check: _QuickCheck, row: OutcomeRow) -> tuple[bytes, str]:
        """Return the encoded response for a row, and its name in the metrics."""
        code, _, remaining, _, reset_after_ns, _, _, source = row
        place = id(check.counter.rule), code, remaining, ceil(reset_after_ns / 1e9), source
        found = self._responses.get(place)
        if found is None:
            decision = Decision(check.counter.rule, row)
            request = RateLimitRequest.FromString(check.message)
            response: bytes = self._service.response(request, decision).SerializeToString()
            found = response, decided(decision)
            if code <= _LAST_ALLOWED:  # A denial contains more numbers.
                if len(self._responses) >= _MAX_RESPONSES:
                    self._responses.clear()
                self._responses[place] = found
        return found

    # -- matching ------------------------------------------------------------------------------

    def _find(self, message: bytes) -> _Counter | None:
        """Return the counter of a message that is not among the most recent ones; None if it is
        not plain."""
        if message in self._recent:
            return None
        counter = self._older[message] if message in self._older else self._match(message)
        if len(message) <= _LARGEST:
            if len(self._recent) >= _MAX_RECENT:
                self._older, self._recent = self._recent, {}
            self._recent[message] = counter
        return counter

    def _match(self, message: bytes) -> _Counter | None:
        try:
            request = RateLimitRequest.FromString(message)
            [asked] = self._service.read(request)
        except (DecodeError, ValueError):
            return None  # Also several descriptors, and `BadRequest`.
        is_plain = asked.limit is None and asked.cost is None and asked.entries
        if not is_plain or is_refund(request.descriptors[0]):
            return None
        assert self._rules is not None
        found = self._rules.counter(request.domain, asked.entries)
        if found is None:
            return None
        rule, key = found
        limit = rule.limit
        if limit is None or rule.carried or limit.algorithm is Algorithm.CONCURRENCY:
            return None
        is_hit = limit.algorithm is Algorithm.FIXED_WINDOW
        return _Counter(rule, key, request.hits_addend or 1, is_hit)
