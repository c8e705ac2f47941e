"""The limits of this Django project: settings, the limiter, and a request's visit.

The limiter is the blocking one, under ASGI too: its event loop is a thread of its own, which sync
and async views share, so that a process has one connection and one account of what was asked.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from ringfence.client import Decision
from ringfence.errors import ConfigError
from ringfence.integrations import wsgi
from ringfence.integrations._core.policy import Policy, settle
from ringfence.integrations._core.request_state import Refusal, RequestState
from ringfence.integrations._core.runner import drive, performer_from_loop
from ringfence.integrations._core.settings import Response, Settings
from ringfence.integrations._core.settings_validation import in_place_of

__all__ = [
    "MIDDLEWARE",
    "DjangoRequest",
    "Integration",
    "decision_of",
    "face",
    "is_installed",
    "read_settings",
]

MIDDLEWARE = "ringfence.integrations.django.RateLimitMiddleware"
"""How the middleware is called in settings."""

_VISIT = "_ringfence"
_NO_ROUTE = "(no route)"


class DjangoRequest:
    """Django's request as key functions read it."""

    __slots__ = ("fetched_user", "native")

    def __init__(self, request: HttpRequest) -> None:
        self.native = request
        self.fetched_user: Any = None
        """The user, where it had to be fetched without blocking."""

    @property
    def method(self) -> str:
        """`GET`, in capitals."""
        return self.native.method or "GET"

    @property
    def path(self) -> str:
        """As asked for, without the query."""
        return self.native.path

    @property
    def peer(self) -> str | None:
        """The connection's other end, as the server tells it."""
        return self.native.META.get("REMOTE_ADDR")

    @property
    def route(self) -> str | None:
        """The pattern of the URL, with its prefixes."""
        match = self.native.resolver_match
        if match is None:
            try:
                match = resolve(self.native.path_info, getattr(self.native, "urlconf", None))
            except Resolver404:
                return _NO_ROUTE
        return match.route

    @property
    def user(self) -> str | None:
        """Primary key of the authenticated user; needs the middleware that authenticates."""
        user = self.fetched_user or getattr(self.native, "user", None)
        return str(user.pk) if user is not None and user.is_authenticated else None

    def header(self, name: str) -> str | None:
        """A request header by its name; None when absent."""
        return self.native.headers.get(name)

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers, by their names in whatever case."""
        return self.native.headers


class Integration(wsgi.RateLimits):
    """A limiter, and how it is asked by sync and by async code."""

    async def admit_async(self, policy: Policy, visit: RequestState) -> Refusal | None:
        """Check one request by a policy, from an event loop."""
        if not self.policy.is_enabled:
            return None
        request = visit.request
        if policy.needs_user and isinstance(request, DjangoRequest):
            fetch = getattr(request.native, "auser", None)
            if fetch is not None and request.fetched_user is None:
                request.fetched_user = await fetch()
        if not (self.limiter.is_open or self.troubles.is_resting):
            # Connecting waits; the first to come does so in a thread, whatever comes of it.
            await asyncio.to_thread(self._connect)
        return await drive(
            policy.admit(visit, self), performer_from_loop(self.limiter), self.troubles
        )

    async def settle_async(self, visit: RequestState, response: Response) -> None:
        """Make the charges of a request what its answer says they should be, once."""
        if visit.spent:
            await drive(
                settle(visit, response, self), performer_from_loop(self.limiter), self.troubles
            )
            visit.spent.clear()

    def finish(self, visit: RequestState, response: HttpResponseBase) -> Response:
        """Add the limit headers; tell the answer as settling reads it."""
        headers = {name.lower(): value for name, value in response.items()}
        for name, value in visit.headers(
            self.policy.headers, response.status_code, response.headers
        ):
            response[name] = value
        return Response(response.status_code, headers)

    def _connect(self) -> None:
        try:
            self.limiter.rules  # noqa: B018 - any look at it connects
        except Exception as error:  # noqa: BLE001 - the check that follows lets the request through
            self.troubles.note_failure(error)


def visit_of(request: HttpRequest) -> tuple[RequestState, bool]:
    """The request's visit, and whether it begins here: then headers are to be written here."""
    native = getattr(request, "_request", request)  # REST framework's requests wrap Django's.
    if not isinstance(native, HttpRequest):
        raise ConfigError(
            f"rate_limit was called with {native!r} in place of a request; on methods of a class "
            "use @method_decorator(rate_limit(...), name='dispatch')"
        )
    visit = getattr(native, _VISIT, None)
    if isinstance(visit, RequestState):
        return visit, False
    visit = RequestState(DjangoRequest(native))
    setattr(native, _VISIT, visit)
    return visit, True


def decision_of(request: HttpRequest) -> Decision | None:
    """All that was decided about a request so far; None when nothing."""
    visit = getattr(getattr(request, "_request", request), _VISIT, None)
    return visit.decision if isinstance(visit, RequestState) else None


def refusal_response(refusal: Refusal) -> HttpResponse:
    """The answer to a request that was denied."""
    return HttpResponse(
        refusal.body.content, status=refusal.refused.status, headers=dict(refusal.headers)
    )


def is_installed() -> bool:
    """Whether the project has the middleware."""
    return MIDDLEWARE in settings.MIDDLEWARE


@cache
def face() -> Integration:
    """The limits that the project's settings describe. Raises `ConfigError` for bad ones."""
    return read_settings(getattr(settings, "RINGFENCE", {}))


def read_settings(given: Mapping[str, object]) -> Integration:
    """Read the setting `RINGFENCE`. Raises `ConfigError` for what makes no sense."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"RINGFENCE is {given!r}; make it a dictionary, as {{'LIMIT': '9/s'}}")
    known = {field.name.upper() for field in fields(Settings)} | {"URL"}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"RINGFENCE has {name!r}, which is not known; {in_place_of(name, known)}"
            )
    options: Any = {name.lower(): value for name, value in given.items()}
    return Integration(options.pop("url", None), **options)


@receiver(setting_changed)
def _forget(*, setting: str, **_: object) -> None:
    """Read the settings again after a test has changed them."""
    if setting == "RINGFENCE":
        face.cache_clear()
