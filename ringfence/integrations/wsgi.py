"""Rate limits for any WSGI application, under servers with threads, processes or both.

The limiter connects at the first request, in the process that serves it, so a server may fork
before or after the application is loaded.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias, Unpack

from ringfence.blocking import BlockingLimiter, connect
from ringfence.client import Decision
from ringfence.client.url import ENVIRONMENT, parse_url
from ringfence.errors import ConfigError
from ringfence.http import RequestHeaders
from ringfence.integrations._core.policy import Policy, owners_of, settle
from ringfence.integrations._core.request_state import Refusal, RequestState
from ringfence.integrations._core.runner import OutageTracker, drive_blocking
from ringfence.integrations._core.settings import (
    LimitSpec,
    Options,
    Response,
    Settings,
    ViewOptions,
)

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["LimiterSpec", "RateLimitMiddleware", "RateLimits", "WsgiRequest", "decision_of"]

LimiterSpec: TypeAlias = str | BlockingLimiter | None
"""A cluster's address (None is the environment's `RINGFENCE_URL`), or a limiter, such as
`ringfence.blocking.local("rules.yaml")`."""

_VISIT = "ringfence"
"""Where an environ holds its visit."""
_UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")
"""Headers that an environ has by these names, where others begin with `HTTP_`."""
_WAIT = 1.0
"""Seconds that a process's first request waits for a member to answer."""


class WsgiRequest:
    """A WSGI environ as the request that key functions read."""

    __slots__ = ("_environ",)

    def __init__(self, environ: "WSGIEnvironment") -> None:
        self._environ = environ

    @property
    def method(self) -> str:
        """`GET`, in capitals."""
        method: str = self._environ["REQUEST_METHOD"]
        return method

    @property
    def path(self) -> str:
        """As asked for, without the query."""
        raw: str = self._environ.get("SCRIPT_NAME", "") + self._environ.get("PATH_INFO", "")
        return raw.encode("latin-1").decode("utf-8", "replace")

    @property
    def peer(self) -> str | None:
        """The connection's other end, as the server tells it."""
        return self._environ.get("REMOTE_ADDR")

    @property
    def route(self) -> str | None:
        """WSGI knows of none."""
        return None

    @property
    def user(self) -> str | None:
        """The user that the server or a middleware outside of ours has authenticated."""
        return self._environ.get("REMOTE_USER") or None

    @property
    def native(self) -> object:
        """WSGI's environ."""
        return self._environ

    def header(self, name: str) -> str | None:
        """A request header by its name; None when absent."""
        key = name.upper().replace("-", "_")
        if key in _UNPREFIXED:  # Empty where the client sent none.
            return self._environ.get(key) or None
        return self._environ.get("HTTP_" + key)

    @property
    def headers(self) -> RequestHeaders:
        """All headers, by their names in whatever case."""
        return RequestHeaders(
            [
                (key.removeprefix("HTTP_").replace("_", "-"), value)
                for key, value in self._environ.items()
                if key.startswith("HTTP_") or (key in _UNPREFIXED and value)
            ]
        )


class RateLimits:
    """A blocking limiter, and how it is asked. Shared by threads, and across a fork."""

    def __init__(self, limiter: LimiterSpec = None, **options: Unpack[Options]) -> None:
        """Raises `ConfigError` for settings or an address that make no sense."""
        self.policy = Policy(Settings(**options), "app")
        if isinstance(limiter, BlockingLimiter):
            self.limiter = limiter
        else:
            if options.get("enabled", True):
                _require_address(limiter)
            self.limiter = connect(limiter, connect_timeout=_WAIT)
        self.troubles = OutageTracker()
        self.policy.require_rules(self.limiter)

    def policy_for(self, name: str, limit: LimitSpec, options: ViewOptions) -> Policy:
        """Make the policy of one view: these settings, but for its own limit and options."""
        policy = self.policy.for_view(name, limit, options)
        policy.require_rules(self.limiter)
        return policy

    def admit(self, policy: Policy, visit: RequestState) -> Refusal | None:
        """Check one request by a policy; give the refusal to answer with when it was denied."""
        if not self.policy.is_enabled:
            return None
        return drive_blocking(policy.admit(visit, self), self.limiter, self.troubles)

    def settle(self, visit: RequestState, response: Response) -> None:
        """Make all charges of a request what its answer says they should be, once."""
        for limits in owners_of(visit):
            assert isinstance(limits, RateLimits)
            drive_blocking(settle(visit, response, limits), limits.limiter, limits.troubles)
        visit.spent.clear()


class RateLimitMiddleware:
    """WSGI middleware: `app = RateLimitMiddleware(app, "ringfence://...", domain="api")`.

    Raises `ConfigError` for settings that make no sense.
    """

    def __init__(
        self, app: "WSGIApplication", limiter: LimiterSpec = None, **options: Unpack[Options]
    ) -> None:
        self.limits = RateLimits(limiter, **options)
        if not self.limits.policy.limits_something:
            raise ConfigError(
                "the middleware limits nothing: give domain='...' to limit by rules, "
                "or limit='100/minute'"
            )
        self._app = app

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Serve one request."""
        if _VISIT in environ:  # Inside another of ours, which writes the headers of both.
            return self._serve(environ[_VISIT], environ, start_response)
        visit = environ[_VISIT] = RequestState(WsgiRequest(environ))
        begin = _Begin(self.limits, visit, start_response)
        try:
            chunks = self._serve(visit, environ, begin)
        except Exception:
            self.limits.settle(visit, Response(500, {}))
            raise
        # Wrapped only where it must be, since a server may send what a file wrapper holds faster.
        return _Settling(chunks, begin) if visit.spent else chunks

    def _serve(
        self, visit: RequestState, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        refusal = self.limits.admit(self.limits.policy, visit)
        if refusal is None:
            return self._app(environ, start_response)
        status = HTTPStatus(refusal.refused.status)
        start_response(f"{status.value} {status.phrase}", refusal.headers)
        return [] if visit.request.method == "HEAD" else [refusal.body.content]


class _Begin:
    """A `start_response` that adds the limit headers, and remembers what was answered."""

    def __init__(self, limits: RateLimits, visit: RequestState, start: "StartResponse") -> None:
        self._limits = limits
        self._visit = visit
        self._start = start
        self._response = Response(500, {})

    def __call__(
        self, status: str, headers: list[tuple[str, str]], *error: object
    ) -> Callable[[bytes], object]:
        code = int(status[:3])
        self._response = Response(code, {name.lower(): value for name, value in headers})
        names = (name for name, _ in headers)
        fields = self._visit.headers(self._limits.policy.headers, code, names)
        return self._start(status, [*headers, *fields], *error)  # type: ignore[arg-type]

    def settle(self) -> None:
        self._limits.settle(self._visit, self._response)


class _Settling:
    """An application's answer; what it was charged is settled when the server closes it."""

    def __init__(self, chunks: Iterable[bytes], begin: _Begin) -> None:
        self._chunks = chunks
        self._begin = begin

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def close(self) -> None:
        """Called by the server at the end, whatever happened."""
        try:
            close: Callable[[], object] | None = getattr(self._chunks, "close", None)
            if close is not None:
                close()
        finally:
            self._begin.settle()


def decision_of(environ: "WSGIEnvironment") -> Decision | None:
    """All that was decided about a request so far; None when nothing."""
    visit = environ.get(_VISIT)
    return visit.decision if isinstance(visit, RequestState) else None


def _require_address(url: str | None) -> None:
    """Tell at the start what would else be told at the first request, and in the log alone."""
    address = url or os.environ.get(ENVIRONMENT)
    if not address:
        raise ConfigError(
            f"no cluster address: give one, or set {ENVIRONMENT} to "
            "ringfence://TOKEN@HOST:PORT?ca=FILE"
        )
    parse_url(address)
