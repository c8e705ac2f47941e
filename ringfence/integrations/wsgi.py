"""Rate limits for any WSGI application, under servers with threads, processes or both.

The limiter connects at the first request, in the process that serves it, so a server may fork
before or after the application is loaded.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias, Unpack

from ringfence.blocking import BlockingLimiter, connect
from ringfence.client.connect import verify_address
from ringfence.client.decision import Decision
from ringfence.client.url import ENVIRONMENT
from ringfence.errors import ConfigError
from ringfence.http import RequestHeaders
from ringfence.integrations._core.effects import Refusal
from ringfence.integrations._core.policy import Policy, owners_of, settle
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.runner import OutageTracker, run_steps_blocking
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
"""URL of a cluster (None: `RINGFENCE_URL` of the environment), or a limiter such as
`ringfence.blocking.local("rules.yaml")`."""

_STATE_KEY = "ringfence"
"""Key of the request state in an environ."""
_UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")
"""Names of headers in an environ that have no prefix `HTTP_`."""
_WAIT = 1.0
"""Time-out of connecting, during the first request of a process."""


class WsgiRequest:
    """Adapter from a WSGI environ to the request from which the keys of counters are read."""

    __slots__ = ("_environ",)

    def __init__(self, environ: "WSGIEnvironment") -> None:
        self._environ = environ

    @property
    def method(self) -> str:
        """Request method in upper case, such as `GET`."""
        method: str = self._environ["REQUEST_METHOD"]
        return method

    @property
    def path(self) -> str:
        """Path of the request, without the query string."""
        raw: str = self._environ.get("SCRIPT_NAME", "") + self._environ.get("PATH_INFO", "")
        return raw.encode("latin-1").decode("utf-8", "replace")

    @property
    def peer(self) -> str | None:
        """Address of the connection's peer, as the server reports it."""
        return self._environ.get("REMOTE_ADDR")

    @property
    def route(self) -> str | None:
        """None, because WSGI has no routes."""
        return None

    @property
    def user(self) -> str | None:
        """User that the server or an outer middleware has authenticated."""
        return self._environ.get("REMOTE_USER") or None

    @property
    def native(self) -> object:
        """The WSGI environ of the request."""
        return self._environ

    def header(self, name: str) -> str | None:
        """Return a request header by its name; None when absent."""
        key = name.upper().replace("-", "_")
        if key in _UNPREFIXED:  # Empty where the client sent none.
            return self._environ.get(key) or None
        return self._environ.get("HTTP_" + key)

    @property
    def headers(self) -> RequestHeaders:
        """All request headers, with case-insensitive names."""
        return RequestHeaders(
            [
                (key.removeprefix("HTTP_").replace("_", "-"), value)
                for key, value in self._environ.items()
                if key.startswith("HTTP_") or (key in _UNPREFIXED and value)
            ]
        )


class RateLimits:
    """Blocking limiter and settings of a WSGI application, for all threads and also after a
    fork."""

    def __init__(self, limiter: LimiterSpec = None, **options: Unpack[Options]) -> None:
        """Raises `ConfigError` for invalid settings or an invalid address."""
        self.policy = Policy(Settings(**options), "app")
        if isinstance(limiter, BlockingLimiter):
            self.limiter = limiter
        else:
            if options.get("enabled", True):
                verify_address(limiter)
            self.limiter = connect(limiter, connect_timeout=_WAIT)
        self.counters = limiter or ENVIRONMENT
        """Limiter or address; equal for objects that share counters."""
        self.outages = OutageTracker()
        self.policy.require_rules(self.limiter)

    def policy_for(self, name: str, limit: LimitSpec, options: ViewOptions) -> Policy:
        """Create the policy of one view: the shared settings, overridden by those of the view."""
        policy = self.policy.for_view(name, limit, options)
        policy.require_rules(self.limiter)
        return policy

    def admit(self, policy: Policy, state: RequestState) -> Refusal | None:
        """Check one request against the limits of a policy. Return the refusal to send when it
        is denied."""
        if not self.policy.is_enabled:
            return None
        steps = policy.admit(state, self, self.counters)
        return run_steps_blocking(steps, self.limiter, self.outages)

    def settle(self, state: RequestState, response: Response) -> None:
        """Correct all charges of a request once after its response, by refunds or further
        charges."""
        with ExitStack() as stack:  # An error in one does not stop the others.
            for limits in owners_of(state):
                assert isinstance(limits, RateLimits)
                steps = settle(state, response, limits)
                stack.callback(run_steps_blocking, steps, limits.limiter, limits.outages)


class RateLimitMiddleware:
    """WSGI middleware: `app = RateLimitMiddleware(app, "ringfence://...", domain="api")`.

    Raises `ConfigError` for invalid settings.
    """

    def __init__(
        self, app: "WSGIApplication", limiter: LimiterSpec = None, **options: Unpack[Options]
    ) -> None:
        self.limits = RateLimits(limiter, **options)
        if not self.limits.policy.has_limits:
            raise ConfigError(
                "the middleware limits nothing: give domain='...' to limit by rules, "
                "or limit='100/minute'"
            )
        self._app = app

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Check the limits of one request, and serve it if it is allowed."""
        if (
            _STATE_KEY in environ
        ):  # Inside another middleware of this class, which writes the headers.
            return self._serve(environ[_STATE_KEY], environ, start_response)
        state = environ[_STATE_KEY] = RequestState(WsgiRequest(environ))
        begin = _StartResponse(self.limits, state, start_response)
        try:
            chunks = self._serve(state, environ, begin)
        except Exception:
            self.limits.settle(state, Response(500, {}))
            raise
        # Wrapped only when needed: a server may send the file of a file wrapper faster.
        return _SettlingBody(chunks, begin) if state.spent else chunks

    def _serve(
        self, state: RequestState, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        refusal = self.limits.admit(self.limits.policy, state)
        if refusal is None:
            return self._app(environ, start_response)
        status = HTTPStatus(refusal.refused.status)
        start_response(f"{status.value} {status.phrase}", refusal.headers)
        return [] if state.request.method == "HEAD" else [refusal.body.content]


class _StartResponse:
    """WSGI `start_response` function that adds the rate limit headers and records the response."""

    def __init__(self, limits: RateLimits, state: RequestState, start: "StartResponse") -> None:
        self._limits = limits
        self._current_state = state
        self._start = start
        self._response = Response(500, {})

    def __call__(
        self, status: str, headers: list[tuple[str, str]], *error: object
    ) -> Callable[[bytes], object]:
        code = int(status[:3])
        self._response = Response(code, {name.lower(): value for name, value in headers})
        names = (name for name, _ in headers)
        fields = self._current_state.headers(self._limits.policy.headers, code, names)
        return self._start(status, [*headers, *fields], *error)  # type: ignore[arg-type]

    def settle(self) -> None:
        self._limits.settle(self._current_state, self._response)


class _SettlingBody:
    """Response body that corrects the charges of the request when the server closes it."""

    def __init__(self, chunks: Iterable[bytes], begin: _StartResponse) -> None:
        self._chunks = chunks
        self._begin = begin

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def close(self) -> None:
        """Close the response body and correct the charges of the request. WSGI servers always
        call it."""
        try:
            close: Callable[[], object] | None = getattr(self._chunks, "close", None)
            if close is not None:
                close()
        finally:
            self._begin.settle()


def decision_of(environ: "WSGIEnvironment") -> Decision | None:
    """Return the combined decision about a request so far; None when there is none."""
    state = environ.get(_STATE_KEY)
    return state.decision if isinstance(state, RequestState) else None
