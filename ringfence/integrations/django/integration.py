"""Shared state of a Django project: settings, limiter, and the state of each request.

The limiter is the blocking one, under ASGI too. Sync and async views share its thread and event
loop, so a process has one connection to each node.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any

import anyio
from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from ringfence.client.decision import Decision
from ringfence.errors import ConfigError
from ringfence.integrations import wsgi
from ringfence.integrations._core.effects import Refusal
from ringfence.integrations._core.policy import Policy, settle
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.runner import SETTLE_WITHIN, performer_from_loop, run_steps
from ringfence.integrations._core.settings import Response, Settings
from ringfence.integrations._core.settings_validation import raise_problems, setting_problems

__all__ = [
    "MIDDLEWARE",
    "DjangoRequest",
    "Integration",
    "decision_of",
    "project_limits",
    "is_installed",
    "read_settings",
]

MIDDLEWARE = "ringfence.integrations.django.RateLimitMiddleware"
"""Name of the middleware in settings."""

_STATE_KEY = "_ringfence"
_NO_ROUTE = "(no route)"


class DjangoRequest:
    """Django request in the form from which the keys of counters are read."""

    __slots__ = ("fetched_user", "native")

    def __init__(self, request: HttpRequest) -> None:
        self.native = request
        self.fetched_user: Any = None
        """The user, when it was fetched asynchronously."""

    @property
    def method(self) -> str:
        """Request method in upper case, such as `GET`."""
        return self.native.method or "GET"

    @property
    def path(self) -> str:
        """Path of the request, without the query string."""
        return self.native.path

    @property
    def peer(self) -> str | None:
        """Address of the connection's peer, as the server reports it."""
        return self.native.META.get("REMOTE_ADDR")

    @property
    def route(self) -> str | None:
        """Pattern of the matched URL, with its prefixes."""
        match = self.native.resolver_match
        if match is None:
            try:
                match = resolve(self.native.path_info, getattr(self.native, "urlconf", None))
            except Resolver404:
                return _NO_ROUTE
        return match.route

    @property
    def user(self) -> str | None:
        """Primary key of the authenticated user; needs the authentication middleware."""
        user = self.fetched_user or getattr(self.native, "user", None)
        return str(user.pk) if user is not None and user.is_authenticated else None

    def header(self, name: str) -> str | None:
        """Return a request header by its name; None when absent."""
        return self.native.headers.get(name)

    @property
    def headers(self) -> Mapping[str, str]:
        """All request headers, with case-insensitive names."""
        return self.native.headers


class Integration(wsgi.RateLimits):
    """Limiter and settings of a Django project, for sync and async code."""

    async def admit_async(self, policy: Policy, state: RequestState) -> Refusal | None:
        """Check one request against the limits of a policy, in an event loop."""
        if not self.policy.is_enabled:
            return None
        request = state.request
        if policy.needs_user and isinstance(request, DjangoRequest):
            fetch = getattr(request.native, "auser", None)
            if fetch is not None and request.fetched_user is None:
                request.fetched_user = await fetch()
        if not (self.limiter.is_open or self.outages.is_paused):
            # Connecting blocks, so the first request does it in a thread.
            await asyncio.to_thread(self._connect)
        steps = policy.admit(state, self, self.counters)
        return await run_steps(steps, performer_from_loop(self.limiter), self.outages)

    async def settle_async(self, state: RequestState, response: Response) -> None:
        """Correct the charges of a request after its response, once, in an event loop."""
        if state.spent:
            with anyio.move_on_after(SETTLE_WITHIN, shield=True):
                await run_steps(
                    settle(state, response, self), performer_from_loop(self.limiter), self.outages
                )

    def finish(self, state: RequestState, response: HttpResponseBase) -> Response:
        """Add the rate limit headers to a response; return its status and headers, by which
        charges are corrected."""
        headers = {name.lower(): value for name, value in response.items()}
        for name, value in state.headers(
            self.policy.headers, response.status_code, response.headers
        ):
            response[name] = value
        return Response(response.status_code, headers)

    def _connect(self) -> None:
        try:
            self.limiter.rules  # noqa: B018 - any look at it connects
        except Exception as error:  # noqa: BLE001 - the check that follows lets the request through
            self.outages.record_failure(error)


def request_state_of(request: HttpRequest) -> tuple[RequestState, bool]:
    """Return the rate limit state of a request, and whether this call created it.

    The code that created the state writes the rate limit headers of the response.
    """
    native = getattr(request, "_request", request)  # REST framework's requests wrap Django's.
    if not isinstance(native, HttpRequest):
        raise ConfigError(
            f"rate_limit was called with {native!r} in place of a request; on methods of a class "
            "use @method_decorator(rate_limit(...), name='dispatch')"
        )
    state = getattr(native, _STATE_KEY, None)
    if isinstance(state, RequestState):
        return state, False
    state = RequestState(DjangoRequest(native))
    setattr(native, _STATE_KEY, state)
    return state, True


def decision_of(request: HttpRequest) -> Decision | None:
    """Return the combined decision about a request so far; None when there is none."""
    state = getattr(getattr(request, "_request", request), _STATE_KEY, None)
    return state.decision if isinstance(state, RequestState) else None


def refusal_response(refusal: Refusal) -> HttpResponse:
    """Return the Django response to a denied request."""
    return HttpResponse(
        refusal.body.content, status=refusal.refused.status, headers=dict(refusal.headers)
    )


def is_installed() -> bool:
    """Whether the project's settings contain the rate limit middleware."""
    return MIDDLEWARE in settings.MIDDLEWARE


@cache
def project_limits() -> Integration:
    """Return the limits of the project's settings. Raises `ConfigError` for invalid ones."""
    return read_settings(getattr(settings, "RINGFENCE", {}))


def read_settings(given: Mapping[str, object]) -> Integration:
    """Read the Django setting `RINGFENCE`. Raises `ConfigError` for invalid values."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"RINGFENCE must be a dictionary such as {{'LIMIT': '9/s'}}, got {given!r}"
        )
    known = {name.upper(): name for name in ("url", *Settings.__dataclass_fields__)}
    raise_problems(setting_problems(given, known, " in RINGFENCE"))
    options: Any = {name.lower(): value for name, value in given.items()}
    return Integration(options.pop("url", None), **options)


@receiver(setting_changed)
def _clear_cache(*, setting: str, **_: object) -> None:
    """Delete the cached Django settings of Ringfence when a test has changed them."""
    if setting == "RINGFENCE":
        project_limits.cache_clear()
