"""HTTP API of the gateway: routes, authorization, and error responses.

The API is one function from an `Exchange` to a `Response`. Any HTTP server can carry it, and tests
need none. The module `forward_auth` answers `/v1/auth`, and `rls` answers Envoy's rate limit
requests.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import anyio
from msgspec import UNSET, Struct

from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.errors import AccessDenied, ConfigError, PeerUnavailable
from ringfence.gateway.grpc.rls import RateLimitService
from ringfence.gateway.http.acquire_waiters import Waiters
from ringfence.gateway.http.api_bodies import (
    AcquireLimitRequest,
    AcquireRequest,
    CheckLimitRequest,
    CheckManyRequest,
    CheckRequest,
    DecisionBody,
    DecisionsBody,
    PeekLimitRequest,
    PeekManyRequest,
    PeekRequest,
    RefundLimitRequest,
    RefundRequest,
    ReleaseBody,
    RenewBody,
    ShouldAllowBody,
    ShouldAllowRequest,
    SlotsRequest,
    decision_body,
    read_body,
    write_body,
)
from ringfence.gateway.http.envoy_json import answer_json
from ringfence.gateway.http.forward_auth import ForwardAuth
from ringfence.gateway.http.hints import (
    NO_ANSWER_FOR_SLOTS,
    NOTHING_RELEASED,
    SLOTS_ENDED,
    UnmatchedHints,
    refund_hint,
)
from ringfence.gateway.http.http_types import Exchange, HttpProblem, Response
from ringfence.gateway.http.openapi import document
from ringfence.gateway.http.slot_tokens import SlotTokens
from ringfence.gateway.process.metrics import Metrics, decided
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.gateway.process.tokens import DOMAINS_REFUSED, Tokens
from ringfence.peering.routing.hedging import HedgingBudget
from ringfence.settings.token_file import Scope
from ringfence.wire import Batch, Source

__all__ = ["Api"]

logger = logging.getLogger("ringfence.gateway")

_Answer = Callable[[Exchange], Awaitable[Response]]
_Asked: TypeAlias = PeekRequest | PeekLimitRequest
_GET = ("GET", "HEAD")
_POST = ("POST",)


class _Route(Struct, frozen=True):
    methods: tuple[str, ...]
    scopes: tuple[Scope, ...]
    """Scopes of which a token needs one. An empty tuple needs no token."""
    answer: _Answer


class Api:
    """HTTP API of the gateway, on top of a limiter."""

    def __init__(
        self,
        limiter: Limiter,
        settings: GatewaySettings,
        tokens: Tokens,
        rls: RateLimitService,
        is_ready: Callable[[], bool],
        hedging: HedgingBudget | None = None,
    ) -> None:
        self.counters = rls.counters
        """Metric counts: responses by path, decisions, and refusals by cause."""
        self._metrics = Metrics(self.counters, hedging, lambda: limiter.unmatched)
        self._limiter = limiter
        self._settings = settings
        self._tokens = tokens
        self._rls = rls
        self._is_ready = is_ready
        self._unmatched_hints = UnmatchedHints()
        self._slot_tokens = SlotTokens(settings.cluster)
        self._waiters = Waiters(settings.max_waiting, settings.max_waiting_per_caller)
        self._document = Response(200, document(settings, with_tokens=not tokens.is_open))
        auth = ForwardAuth(limiter, settings, self.counters)
        self._routes = {
            "/v1/check": _Route(_POST, (Scope.CHECK,), self._check),
            "/v1/peek": _Route(_POST, (Scope.CHECK, Scope.OBSERVE), self._peek),
            "/v1/charge": _Route(_POST, (Scope.CHECK,), self._charge),
            "/v1/refund": _Route(_POST, (Scope.REFUND,), self._refund),
            "/v1/reset": _Route(_POST, (Scope.RESET,), self._reset),
            "/v1/acquire": _Route(_POST, (Scope.CHECK,), self._acquire),
            "/v1/renew": _Route(_POST, (Scope.CHECK,), self._renew),
            "/v1/release": _Route(_POST, (Scope.CHECK,), self._release),
            "/v1/auth": _Route(_GET, (Scope.CHECK,), auth.answer),
            "/metrics": _Route(_GET, (Scope.OBSERVE,), self._get_metrics),
            "/v1/counters": _Route(_GET, (Scope.OBSERVE,), self._get_counters),
            "/shouldAllowRequest": _Route(_POST, (Scope.CHECK,), self._should_allow),
            "/json": _Route(_POST, (Scope.CHECK,), self._envoy_json),
            "/openapi.json": _Route(_GET, (), self._describe),
            "/healthz": _Route(_GET, (), self._healthz),
            "/readyz": _Route(_GET, (), self._readyz),
        }

    async def answer(self, exchange: Exchange) -> Response:
        """Answer one HTTP request; every error becomes a response with problem details."""
        try:
            response = await self._answer(exchange)
        except HttpProblem as problem:
            self.counters[f"refused_{problem.cause}"] += 1
            response = problem.response()
        except AccessDenied as error:
            logger.error("the cluster refuses the gateway's own token: %s", error)
            # Not 403: nginx would deny all requests, although only the gateway's token is wrong.
            response = self._unavailable(f"the cluster refuses the gateway's token: {error}")
        except PeerUnavailable as error:
            response = self._unavailable(str(error))
        except (ConfigError, ValueError) as error:
            # The body types accepted it, but the limiter did not.
            self.counters["refused_bad_request"] += 1
            response = HttpProblem(400, str(error)).response()
        except Exception:
            logger.exception("internal error in %s %s", exchange.method, exchange.path)
            self.counters["bugs"] += 1
            response = HttpProblem(500, "internal error of the gateway; see its log").response()
        if exchange.method == "HEAD":
            response = _without_body(response)
        return response

    async def _answer(self, exchange: Exchange) -> Response:
        route = self._routes.get(exchange.path)
        if route is None:
            raise HttpProblem(404, "the path does not exist; /openapi.json lists all paths")
        if exchange.method not in route.methods:
            allowed = ", ".join(route.methods)
            raise HttpProblem(
                405, f"the method must be {allowed}, got {exchange.method}", [("Allow", allowed)]
            )
        if route.scopes:
            self._admit(exchange, route.scopes)
        self.counters[exchange.path] += 1
        return await route.answer(exchange)

    def _admit(self, exchange: Exchange, needed: tuple[Scope, ...]) -> None:
        scopes = self._tokens.scopes_of(exchange.header("authorization"))
        if scopes is None:
            raise HttpProblem(
                401,
                "send Authorization: Bearer NAME.SECRET with a token that the gateway knows",
                [("WWW-Authenticate", 'Bearer realm="ringfence"')],
            )
        if not scopes:
            raise HttpProblem(403, DOMAINS_REFUSED)
        if scopes.isdisjoint(needed):
            lacking = (
                "without `tokens` a certificate grants the scope check alone; set them for the"
                if self._tokens.is_open
                else "the token lacks the"
            )
            raise HttpProblem(403, f"{lacking} scope {' or '.join(needed)}")

    def _unavailable(self, why: str) -> Response:
        self.counters["refused_no_cluster"] += 1
        return HttpProblem(503, why, [("Retry-After", "1")]).response()

    # -- asking --------------------------------------------------------------------------------

    async def _check(self, exchange: Exchange) -> Response:
        asked = await self._read(exchange, CheckRequest, CheckManyRequest, CheckLimitRequest)
        within = self._settings.deadline
        match asked:
            case CheckManyRequest():
                return self._many(exchange, await self._check_many(asked.checks), asked.checks)
            case CheckLimitRequest():
                key = tuple(asked.key)
                decision = await self._limiter.check_limit(
                    asked.limit, *key, cost=asked.cost, timeout=within
                )
            case _:
                decision = await self._limiter.check(
                    asked.domain, asked.descriptors, asked.cost, timeout=within
                )
        return self._one(exchange, decision, asked)

    async def _peek(self, exchange: Exchange) -> Response:
        asked = await self._read(exchange, PeekRequest, PeekManyRequest, PeekLimitRequest)
        within = self._settings.deadline
        match asked:
            case PeekManyRequest():
                return self._many(exchange, await self._check_many(asked.checks), asked.checks)
            case PeekLimitRequest():
                key = tuple(asked.key)
                decision = await self._limiter.peek_limit(asked.limit, *key, timeout=within)
            case _:
                decision = await self._limiter.peek(asked.domain, asked.descriptors, timeout=within)
        return self._one(exchange, decision, asked)

    async def _charge(self, exchange: Exchange) -> Response:
        asked = await self._read(exchange, CheckRequest, CheckLimitRequest)
        within = self._settings.deadline
        if isinstance(asked, CheckLimitRequest):
            decision = await self._limiter.charge_limit(
                asked.limit, *asked.key, cost=asked.cost, timeout=within
            )
        else:
            decision = await self._limiter.charge(
                asked.domain, asked.descriptors, asked.cost, timeout=within
            )
        return self._one(exchange, decision, asked)

    async def _refund(self, exchange: Exchange) -> Response:
        asked = await self._read(exchange, RefundRequest, RefundLimitRequest)
        within = self._settings.deadline
        if isinstance(asked, RefundLimitRequest):
            decision = await self._limiter.refund_limit(
                asked.limit, *asked.key, cost=asked.cost, age=asked.age, timeout=within
            )
        else:
            decision = await self._limiter.refund(
                asked.domain, asked.descriptors, asked.cost, age=asked.age, timeout=within
            )
        return self._one(exchange, decision, asked)

    async def _reset(self, exchange: Exchange) -> Response:
        asked = await self._read(exchange, PeekRequest, PeekLimitRequest)
        within = self._settings.deadline
        if isinstance(asked, PeekLimitRequest):
            decision = await self._limiter.reset_limit(asked.limit, *asked.key, timeout=within)
        else:
            decision = await self._limiter.reset(asked.domain, asked.descriptors, timeout=within)
        return self._one(exchange, decision, asked)

    async def _acquire(self, exchange: Exchange) -> Response:
        asked = await self._read(exchange, AcquireRequest, AcquireLimitRequest)
        longest = min(asked.max_wait, self._settings.max_wait)
        caller = self._tokens.name_of(exchange.header("authorization")) or exchange.peer
        with self._waiters.place(caller):
            if isinstance(asked, AcquireLimitRequest):
                decision = await self._limiter.acquire_limit(
                    asked.limit, *asked.key, cost=asked.cost, max_wait=longest
                )
            else:
                decision = await self._limiter.acquire(
                    asked.domain, asked.descriptors, asked.cost, max_wait=longest
                )
        return self._one(exchange, decision, asked)

    async def _renew(self, exchange: Exchange) -> Response:
        slots = await self._read_slots(exchange)
        seconds = await self._limiter.renew(slots, timeout=self._settings.deadline)
        if seconds is None:
            raise PeerUnavailable(NO_ANSWER_FOR_SLOTS)
        hint = UNSET if seconds else SLOTS_ENDED
        return self._write(exchange, RenewBody(bool(seconds), seconds, hint))

    async def _release(self, exchange: Exchange) -> Response:
        slots = await self._read_slots(exchange)
        units = await self._limiter.release(slots, timeout=self._settings.deadline)
        if units is None:
            raise PeerUnavailable(NO_ANSWER_FOR_SLOTS)
        return self._write(exchange, ReleaseBody(units, UNSET if units else NOTHING_RELEASED))

    async def _read_slots(self, exchange: Exchange) -> Batch:
        asked = await self._read(exchange, SlotsRequest)
        return self._slot_tokens.read(asked.slots)

    async def _should_allow(self, exchange: Exchange) -> Response:
        asked = await self._read(exchange, ShouldAllowRequest)
        decision = await self._limiter.check(
            self._settings.domain, {"client": asked.clientId}, timeout=self._settings.deadline
        )
        self.counters[decided(decision)] += 1
        return self._write(exchange, ShouldAllowBody(decision.allowed))

    async def _envoy_json(self, exchange: Exchange) -> Response:
        return await answer_json(self._rls, await exchange.body())

    async def _check_many(self, asked: "list[CheckRequest] | list[PeekRequest]") -> list[Decision]:
        """Decide each check of a request separately. Checks of one domain are sent to nodes
        together."""
        if len(asked) > self._settings.max_checks:
            raise HttpProblem(
                413,
                f"checks must be at most {self._settings.max_checks}, got {len(asked)}; send fewer",
                cause="too_large",
            )
        places: dict[str, list[int]] = {}
        for place, each in enumerate(asked):
            places.setdefault(each.domain, []).append(place)
        found: dict[int, Decision] = {}
        failed: list[Exception] = []

        async def check(domain: str, rows: list[int]) -> None:
            try:
                decisions = await self._limiter.check_many(
                    domain,
                    [asked[row].descriptors for row in rows],
                    [_cost_of(asked[row]) for row in rows],
                    timeout=self._settings.deadline,
                )
            except Exception as error:  # noqa: BLE001 - raised below, outside of an exception group
                failed.append(error)
            else:
                found.update(zip(rows, decisions, strict=True))

        async with anyio.create_task_group() as tasks:
            for domain, rows in places.items():
                tasks.start_soon(check, domain, rows)
        if failed:
            raise failed[0]
        return [found[place] for place in range(len(asked))]

    # -- telling -------------------------------------------------------------------------------

    async def _get_counters(self, exchange: Exchange) -> Response:
        return self._write(exchange, dict(sorted(self.counters.items())))

    async def _get_metrics(self, exchange: Exchange) -> Response:
        self._metrics.is_ready = self._is_ready()
        body, content_type = self._metrics.write(exchange.header("accept"))
        return Response(200, body, content_type)

    async def _describe(self, exchange: Exchange) -> Response:
        return self._document

    async def _healthz(self, exchange: Exchange) -> Response:
        return self._write(exchange, {"status": "alive"})

    async def _readyz(self, exchange: Exchange) -> Response:
        if not self._is_ready():
            raise HttpProblem(503, "the gateway has not received the rules yet, or it is stopping")
        return self._write(exchange, {"status": "ready"})

    # -- bodies --------------------------------------------------------------------------------

    async def _read(self, exchange: Exchange, *kinds: type[Any]) -> Any:
        """Parse the request body as the first type in `kinds` that matches it."""
        return read_body(await exchange.body(), exchange.header("content-type"), *kinds)

    def _one(self, exchange: Exchange, decision: Decision, asked: _Asked) -> Response:
        self.counters[decided(decision)] += 1
        return self._write(exchange, self._body(decision, asked))

    def _many(
        self, exchange: Exchange, decisions: list[Decision], asked: Sequence[_Asked]
    ) -> Response:
        self.counters.update(map(decided, decisions))
        return self._write(exchange, DecisionsBody([*map(self._body, decisions, asked)]))

    def _body(self, decision: Decision, asked: _Asked) -> DecisionBody:
        body = decision_body(decision)
        if decision.slots is not None:
            body.slots = self._slot_tokens.write(decision.slots)
            body.slots_expire_after = decision.slot_period
        if decision.refunded is not None:
            body.refunded = decision.refunded
            if hint := refund_hint(decision, _cost_of(asked)):
                body.hint = hint
        if (
            decision.source is Source.NO_RULE
            and isinstance(asked, PeekRequest)
            and not any([status.rule for status in decision.statuses])
        ):
            rules = self._limiter.rules
            body.hint = self._unmatched_hints.hint(rules, asked.domain, asked.descriptors)
        return body

    def _write(self, exchange: Exchange, value: object) -> Response:
        body, kind = write_body(value, exchange.header("accept"), exchange.header("content-type"))
        return Response(200, body, kind)


def _without_body(response: Response) -> Response:
    """Return the response to HEAD: the headers of the GET response without its body."""
    headers = list(response.headers)
    if response.body:
        headers.append(("Content-Type", response.content_type))
    return Response(response.status, b"", response.content_type, headers)


def _cost_of(asked: _Asked) -> int:
    return asked.cost if isinstance(asked, CheckRequest | CheckLimitRequest) else 0
