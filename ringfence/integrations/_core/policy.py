"""Policy of an integration: checks of the limits of a request, and corrections after its response.

Synchronous and without I/O: the methods are generators that yield effects (requested limiter calls)
and receive decisions. `run_steps` performs the effects, async or blocking, so all frameworks share
this code. When the limiter fails, the generator receives `LimiterFailed` and allows the request.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import cast

from msgspec.structs import replace

from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.client.decision import Status
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import checked_cost
from ringfence.client.reservation import is_uncounted
from ringfence.errors import ConfigError
from ringfence.http import ClientAddress, Keys, LimitHeaders, Request
from ringfence.http.callback_checks import require_answer
from ringfence.http.paths import has_one_reading
from ringfence.integrations._core.effects import (
    Charge,
    Check,
    CheckSpec,
    LimitCheckSpec,
    LimiterFailed,
    Pause,
    Refund,
    Release,
    RuleCheckSpec,
    Steps,
)
from ringfence.integrations._core.request_state import Charged, RequestState, Spent
from ringfence.integrations._core.settings import LimitSpec, Response, Settings, ViewOptions
from ringfence.limiter import Algorithm, Limit
from ringfence.rules import adhoc_rule, format_limit, parse_limit

__all__ = ["Policy", "owners_of", "settle"]

_CACHE_SIZE = 1024


class Policy:
    """Limits and options of an integration, compiled from `Settings`. Raises `ConfigError` for
    invalid settings."""

    def __init__(
        self,
        settings: Settings,
        name: str = "",
        *,
        is_view: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` separates the counters of this policy from others, unless the settings have a
        `scope`.

        A view may have several policies, each with its own counters. `clock` returns seconds.
        """
        self.settings = settings
        self.is_enabled = settings.enabled
        """False allows all requests without a check. May change at any time."""
        addresses = ClientAddress(
            settings.trusted_proxies,
            header=settings.proxy_header,
            ipv6_prefix=settings.ipv6_prefix,
        )
        self._keys = Keys(settings.keys, addresses, user=settings.user)
        self.headers = LimitHeaders(settings.headers, reset=settings.reset)
        self._limits = _limits(settings.limit)
        scope = name if settings.scope is None else settings.scope
        self._scope = f"{settings.namespace}: {scope}" if settings.namespace else scope
        self._is_one_of_several = is_view and settings.scope is None
        self._scopes: dict[tuple[Limit, ...], list[str]] = {}
        self._exempt_methods = frozenset([method.upper() for method in settings.exempt_methods])
        self._exempt_paths = frozenset(settings.exempt_paths)
        globs = [translate(path) for path in settings.exempt_paths if "*" in path]
        self._exempt_globs = re.compile("|".join(globs)) if globs else None
        self._exempt_when = settings.exempt_when
        self._clock = clock
        self._settles = settings.deduct_when is not None or settings.cost_after is not None
        _require_valid(settings)

    @property
    def has_limits(self) -> bool:
        """Whether the settings of this policy contain a domain or a limit."""
        return self.settings.domain is not None or self.settings.limit is not None

    @property
    def needs_user(self) -> bool:
        """Whether a key of this policy contains the user of the request."""
        return self._keys.needs_user

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Names of the entries of each descriptor that the keys of this policy can produce."""
        return self._keys.paths

    def require_rules(self, limiter: Limiter | BlockingLimiter) -> None:
        """Log a warning for a domain or keys that no rule can match.

        Raises `ConfigError` instead when the settings are strict and the rules are known.
        """
        settings = self.settings
        if settings.domain is None or not settings.enabled:
            return
        if settings.strict:
            limiter.rules  # noqa: B018 - a blocking limiter connects now, not with the first check
        problems = limiter.expect(settings.domain, *self.paths)
        if problems and settings.strict:
            raise ConfigError("; ".join(problems))

    def for_view(self, name: str, limit: LimitSpec, options: ViewOptions) -> "Policy":
        """Create the policy of one view: this policy's settings, overridden by those of the
        view."""
        own = dataclasses.replace(self.settings, domain=None, limit=limit, scope=None)
        view = dataclasses.replace(own, **options)
        policy = Policy(view, name, is_view=True, clock=self._clock)
        if not policy.has_limits:
            raise ConfigError(
                "the limit of a view must name a limit, such as '5/minute', or a domain"
            )
        return policy

    def exempts(self, method: str, path: str) -> bool:
        """Whether the settings exempt requests with this method or path."""
        if method in self._exempt_methods or path in self._exempt_paths:
            return True
        if self._exempt_globs is None or self._exempt_globs.match(path) is None:
            return False
        return has_one_reading(path)

    def admit(self, state: RequestState, owner: object, counters: object = None) -> Steps:
        """Check one request. Return the refusal to send when it is refused, otherwise None.

        `owner` is the object whose limiter makes this check; its limiter must also correct the
        charge after the response. `counters` is equal for owners that share counters; None: the
        owner has its own. Equal checks of several policies charge a request once.
        """
        request = state.request
        if not self.is_enabled or self.exempts(request.method, request.path):
            return None
        if self._exempt_when is not None and require_answer(
            "exempt_when", self._exempt_when(request)
        ):
            return None
        cost = self._cost(request)
        asks = self._asks(request)
        made: list[Spent] = []
        known, known_charged = len(state.spent), len(state.charged)
        asked_at = self._clock()
        for ask in asks:
            charged = self._charged(ask, cost, owner if counters is None else counters)
            if state.has_charged(charged):
                continue
            try:
                decision = yield Check(ask, cost)
            except LimiterFailed:
                state.has_failed = True
                continue
            assert decision is not None
            state.decisions.append(decision)
            if not decision.allowed:
                if self.settings.block:
                    del state.spent[known:]
                    del state.charged[known_charged:]
                    yield from self._refund_all(made)
                    return state.refuse(self.settings.template)
                continue  # Nothing was charged; other limits count the request as usual.
            state.charged.append(charged)
            if self._settles or decision.slots is not None:
                made.append(Spent(self.settle, owner, ask, cost, decision, asked_at))
                state.spent.append(made[-1])  # Now, because a delay can be cancelled.
            elif len(asks) > 1 and self.settings.block:  # A later limit may deny: then refund.
                made.append(Spent(None, owner, ask, cost, decision, asked_at))
            if decision.delay:
                yield Pause(decision.delay)
        return None

    def settle(self, spent: Spent, request: Request, response: Response) -> Steps:
        """After the response to a request, correct its charge: release slots, refund units or
        charge more."""
        if spent.decision.slots is not None:
            yield Release(spent.decision)
        # No node confirmed the counters that the failure policy allowed, so they hold nothing.
        counted = _part_of(spent, is_counted=True)
        uncounted = _part_of(spent, is_counted=False)
        if counted is None and uncounted is None:
            return None  # A refund would free a slot of another request.
        deduct_when, cost_after = self.settings.deduct_when, self.settings.cost_after
        actual: int | None = None
        if deduct_when is not None and not require_answer("deduct_when", deduct_when(response)):
            actual = 0
        elif cost_after is not None:
            reported = cost_after(request, response)
            if reported is not None:
                name = getattr(cost_after, "__qualname__", repr(cost_after))
                actual = checked_cost(reported, f"the result of cost_after ({name})")
        if actual is None:
            return None
        if counted is not None and actual < spent.cost:
            age = self._clock() - spent.asked_at
            yield Refund(spent.ask, spent.cost - actual, age, spent.decision)
        elif counted is not None and actual > spent.cost:
            yield Charge(counted, actual - spent.cost)
        if uncounted is not None and actual > 0:
            yield Charge(uncounted, actual)
        return None

    def _refund_all(self, made: list[Spent]) -> Steps:
        for spent in made:
            try:
                if spent.decision.slots is not None:
                    yield Release(spent.decision)
                else:
                    age = self._clock() - spent.asked_at
                    yield Refund(spent.ask, spent.cost, age, spent.decision)
            except LimiterFailed:
                continue
        return None

    def _charged(self, ask: CheckSpec, cost: int, counters: object) -> Charged:
        settings = self.settings
        return Charged(self, (counters, ask, cost, settings.deduct_when, settings.cost_after))

    # -- reading a request ---------------------------------------------------------------------

    def _cost(self, request: Request) -> int:
        cost = self.settings.cost
        if isinstance(cost, int):
            return cost
        if callable(cost):
            # Checked here: an error of the limiter would count as an outage.
            return checked_cost(cost(request), "the result of the setting cost")
        found = None if request.route is None else cost.get(request.route)
        return cost.get(request.path, 1) if found is None else found

    def _asks(self, request: Request) -> Sequence[CheckSpec]:
        settings = self.settings
        if settings.domain is not None:
            found = self._keys.descriptors(request)
            if not found:
                return ()
            # A single mapping is the fastest form for the limiter.
            descriptors = found[0] if len(found) == 1 else found
            return [RuleCheckSpec(settings.domain, descriptors, settings.timeout)]
        limits = self._limits(request)
        if not limits:
            return ()
        scopes = self._scopes_of(tuple(limits))
        return [
            LimitCheckSpec(limit, (scope, *key))
            for key in self._keys.parts(request)
            for limit, scope in zip(limits, scopes, strict=True)
        ]

    def _scopes_of(self, limits: tuple[Limit, ...]) -> list[str]:
        """Return for each limit the scope of its counter, a text that separates counters.

        Limits that differ only in their amounts share a counter, for example when the tier of a
        client changes. When they apply to the same request, each has its own counter.
        """
        scopes = self._scopes.get(limits)
        if scopes is None:
            kinds = [adhoc_rule(limit).id for limit in limits]
            is_told = self._is_one_of_several and not callable(self.settings.limit)
            scopes = [
                f"{self._scope} {format_limit(limit)}"
                if is_told or kinds.count(kind) > 1
                else self._scope
                for limit, kind in zip(limits, kinds, strict=True)
            ]
            if len(self._scopes) >= _CACHE_SIZE:
                self._scopes.clear()
            self._scopes[limits] = scopes
        return scopes


def settle(state: RequestState, response: Response, owner: object) -> Steps:
    """After a response, correct all charges that the limiter of `owner` made for the request, once.

    An error of a function of the application is raised after the other corrections.
    """
    ours = [spent for spent in state.spent if spent.owner is owner]
    state.spent = [spent for spent in state.spent if spent.owner is not owner]
    failed: Exception | None = None
    for spent in ours:
        assert spent.settle is not None
        try:
            yield from spent.settle(spent, state.request, response)
        except LimiterFailed:
            continue  # It is logged. The units become available when their period ends.
        except Exception as error:  # noqa: BLE001 - the others must release their slots
            failed = failed or error
    if failed is not None:
        raise failed
    return None


def owners_of(state: RequestState) -> list[object]:
    """Return the objects whose limiters have charged a request; nearly always one."""
    return list(dict.fromkeys([spent.owner for spent in state.spent]))


def _part_of(spent: Spent, *, is_counted: bool) -> CheckSpec | None:
    """Return the checked limits that counted a request, or those that did not, except concurrency
    limits; None if there are no such limits."""
    ask, statuses = spent.ask, spent.decision.statuses
    kept = [
        place
        for place, status in enumerate(statuses)
        if is_uncounted(status) is not is_counted and not _has_slots(status)
    ]
    if not kept or len(kept) == len(statuses):
        return ask if kept else None
    if isinstance(ask, LimitCheckSpec) or isinstance(ask.descriptors, dict):
        return None
    return replace(ask, descriptors=[ask.descriptors[place] for place in kept])


def _has_slots(status: Status) -> bool:
    limit = None if status.rule is None else status.rule.limit
    return limit is not None and limit.algorithm is Algorithm.CONCURRENCY


def _require_valid(settings: Settings) -> None:
    """Raise `ConfigError` for two sources of limits, or a cost that is out of range."""
    if settings.domain is not None and settings.limit is not None:
        raise ConfigError(
            f"both domain {settings.domain!r} and limit {settings.limit!r} are given; "
            "give one: a domain with rules, or an ad-hoc limit"
        )
    if not callable(settings.cost):
        costs = {"": settings.cost} if isinstance(settings.cost, int) else settings.cost
        for path, cost in costs.items():
            checked_cost(cost, f"cost of {path!r}" if path else "cost")


def _limits(spec: LimitSpec) -> Callable[[Request], Sequence[Limit]]:
    """Parse the limits at the start of the application, so that an invalid limit is an error at
    that time."""
    if callable(spec):
        read_once = lru_cache(_CACHE_SIZE)(parse_limit)
        return lambda request: _read(spec(request), read_once)
    read = _read(spec, parse_limit)
    return lambda _: read


def _read(spec: object, parse: Callable[[str], Limit]) -> Sequence[Limit]:
    """Parse one limit or a list of limits. Raises `ConfigError` for other values.

    Equal limits of a list would have the same counter, so a request must not pay for each.
    """
    if spec is None:
        return ()
    is_list = isinstance(spec, Iterable) and not isinstance(spec, str | bytes)
    every = cast(Iterable[object], spec) if is_list else (spec,)
    return [*dict.fromkeys([_one(each, parse) for each in every])]


def _one(limit: object, parse: Callable[[str], Limit]) -> Limit:
    if isinstance(limit, str):
        return parse(limit)
    if isinstance(limit, Limit):
        return limit
    require_answer("limit", limit)
    raise ConfigError(
        "limit must be text such as '5/minute', a Limit, a list of these, or a function of the "
        f"request that returns one of them or None, got {limit!r}"
    )
