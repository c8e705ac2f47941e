"""Transports for httpx that delay outgoing requests to keep a limit.

The counters are in the cluster, so all calling processes together keep the limit. Optionally the
transports also respect `Retry-After` of 429 and 503 responses.
"""

from collections.abc import Callable
from functools import partial

try:
    import httpx
except ImportError as error:
    raise ImportError(
        "ringfence.integrations.httpx needs httpx; install it with its extra: "
        "pip install '.[httpx]' in a checkout, or 'ringfence[httpx]' where it is published"
    ) from error

from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.client.decision import Decision, Numbers, Status, decide
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import Descriptors, checked_seconds
from ringfence.errors import ConfigError
from ringfence.http.callback_checks import require_arguments, require_plain
from ringfence.integrations._core import clock
from ringfence.integrations._core.limit_target import (
    AdHocTarget,
    LimitTarget,
    RuleTarget,
    require_one,
)
from ringfence.integrations._core.over_limit import OverLimit
from ringfence.integrations._core.retry_after import RetryPauses, parse_retry_after
from ringfence.integrations._core.thread_bridge import ask
from ringfence.limiter import Algorithm, Limit
from ringfence.rules import parse_limit
from ringfence.wire import Source

__all__ = ["AsyncWaitingTransport", "TurnTooLate", "WaitingTransport", "by_host"]

_RETRY_STATUSES = (429, 503)


class TurnTooLate(OverLimit, httpx.TransportError):
    """Error for a request that was not sent, because it would have had to wait longer than
    `max_wait` for its limit, or for the end of a pause that the server has requested."""

    def __init__(self, request: httpx.Request | str, decision: Decision | Numbers) -> None:
        """`request` is text when the error is created again from its `args`."""
        if isinstance(request, str):
            OverLimit.__init__(self, request, decision)
            return
        url = request.url.copy_with(query=None)
        OverLimit.__init__(self, f"{request.method} {url}", decision)
        self._request = request


def by_host(request: httpx.Request) -> str:
    """Return the host that a request calls: the default key, with one counter per host."""
    return request.url.host


class _Waiting:
    """Common base of the sync and the async transport: limits and keys of requests, pauses,
    retries."""

    def __init__(
        self,
        limit: str | Limit | None,
        key: Callable[[httpx.Request], str],
        domain: str | None,
        descriptors: Callable[[httpx.Request], Descriptors] | None,
        max_wait: float,
        respect_retry_after: bool,
    ) -> None:
        require_one(limit, domain, descriptors)
        known = parse_limit(limit) if isinstance(limit, str) else limit
        if known is not None and known.algorithm is Algorithm.CONCURRENCY:
            raise ConfigError(
                f"limit cannot be a concurrency limit, got {str(limit)!r}: a transport does not "
                "know when a response has been read; use `hold_limit` around the request"
            )
        _require_function("key", key, "give for instance lambda request: request.url.host")
        if descriptors is not None:
            _require_function("descriptors", descriptors, f"write lambda request: {descriptors!r}")
        self.max_wait = checked_seconds("max_wait", max_wait)
        self._limit = limit
        self._key = key
        self._domain = domain
        self._descriptors = descriptors
        self._respects_retry_after = respect_retry_after
        self._pauses = RetryPauses()

    def wait_budget(self, request: httpx.Request) -> LimitTarget:
        """Return the limit or rules, with the key, from which a request spends units."""
        if self._limit is not None:
            return AdHocTarget(self._limit, ("httpx", self._key(request)), 1)
        assert self._domain is not None
        assert self._descriptors is not None
        return RuleTarget(self._domain, self._descriptors(request), 1)

    def slots_error(self) -> ConfigError:
        """Create the error for a request that matches a rule with a concurrency limit."""
        return ConfigError(
            f"descriptors must match no concurrency limit of domain {self._domain!r}: a transport "
            "does not know when a response has been read; use `hold` around the request"
        )

    def pause(self, request: httpx.Request, now: float, give_up: float) -> float:
        """Return the remaining seconds of the pause that a server has requested by `Retry-After`.

        Raises `TurnTooLate` when the pause ends after `give_up`.
        """
        if not self._respects_retry_after:
            return 0.0
        left = self._pauses.left(self._key(request), now)
        if left and now + left > give_up:
            denied = Status(False, None, None, 0, left, 0.0, 0.0, Source.CACHE)
            raise TurnTooLate(request, decide([denied]))
        return left

    def should_retry(
        self, request: httpx.Request, response: httpx.Response, now: float, give_up: float
    ) -> bool:
        """Store the `Retry-After` of a response; return whether to repeat the request after that
        time."""
        if not self._respects_retry_after or response.status_code not in _RETRY_STATUSES:
            return False
        seconds = parse_retry_after(response.headers.get("retry-after"))
        if seconds is None:
            return False
        self._pauses.begin(self._key(request), now, seconds)
        # A streamed body cannot be sent again; httpx keeps other bodies as bytes.
        return isinstance(request.stream, httpx.ByteStream) and now + seconds <= give_up


def _require_function(name: str, value: object, advice: str) -> None:
    """Raise `ConfigError` for a value that is not a function of the request."""
    if not callable(value):
        raise ConfigError(f"{name} must be a function of the request, got {value!r}; {advice}")
    require_plain(name, value)
    require_arguments(name, value, "request")


async def _release(decision: Decision, limiter: Limiter) -> None:
    await limiter.release(decision)


class WaitingTransport(httpx.BaseTransport):
    """Transport for `httpx.Client(transport=WaitingTransport(limiter, "10/s"))`.

    Each request spends one unit of `limit` per `key` (by default the host), or of the rules of
    `domain` that `descriptors` match. It waits until it is allowed, at most `max_wait` seconds in
    all. Otherwise `TurnTooLate` is raised and nothing is sent.

    With `respect_retry_after`, a 429 or 503 with `Retry-After` delays all requests of that key. The
    request itself is sent again if `max_wait` allows; else the response is returned. `transport`
    sends the requests; None is the default transport of httpx.
    """

    def __init__(
        self,
        limiter: BlockingLimiter,
        limit: str | Limit | None = None,
        *,
        key: Callable[[httpx.Request], str] = by_host,
        domain: str | None = None,
        descriptors: Callable[[httpx.Request], Descriptors] | None = None,
        max_wait: float = 30.0,
        respect_retry_after: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if not isinstance(limiter, BlockingLimiter):
            raise ConfigError(
                f"limiter must be one of ringfence.blocking, got {limiter!r}; give for instance "
                "ringfence.blocking.connect('ringfence://...'), or use AsyncWaitingTransport with "
                "httpx.AsyncClient"
            )
        self._limiter = limiter
        self._waiting = _Waiting(limit, key, domain, descriptors, max_wait, respect_retry_after)
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait until the limit allows the request, then send it."""
        waiting = self._waiting
        give_up = clock.now() + waiting.max_wait
        while True:
            clock.sleep(waiting.pause(request, clock.now(), give_up))
            left = max(0.0, give_up - clock.now())
            question = partial(waiting.wait_budget(request).acquire, max_wait=left)
            decision = self._limiter.run(question)
            if not decision:
                raise TurnTooLate(request, decision)
            if decision.slots is not None:
                self._limiter.release(decision)
                raise waiting.slots_error()
            response = self._transport.handle_request(request)
            if not waiting.should_retry(request, response, clock.now(), give_up):
                return response
            response.close()

    def close(self) -> None:
        """Close the inner transport, which sends the requests."""
        self._transport.close()


class AsyncWaitingTransport(httpx.AsyncBaseTransport):
    """Async form of `WaitingTransport`, for `httpx.AsyncClient`; the limiter may be async or
    blocking."""

    def __init__(
        self,
        limiter: Limiter | BlockingLimiter,
        limit: str | Limit | None = None,
        *,
        key: Callable[[httpx.Request], str] = by_host,
        domain: str | None = None,
        descriptors: Callable[[httpx.Request], Descriptors] | None = None,
        max_wait: float = 30.0,
        respect_retry_after: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not isinstance(limiter, Limiter | BlockingLimiter):
            raise ConfigError(
                f"limiter must be one of ringfence.connect or ringfence.blocking, got {limiter!r}; "
                "give for instance ringfence.blocking.connect('ringfence://...')"
            )
        self._limiter = limiter
        self._waiting = _Waiting(limit, key, domain, descriptors, max_wait, respect_retry_after)
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait until the limit allows the request, then send it."""
        waiting, limiter = self._waiting, self._limiter
        give_up = clock.now_async() + waiting.max_wait
        while True:
            await clock.sleep_async(waiting.pause(request, clock.now_async(), give_up))
            left = max(0.0, give_up - clock.now_async())
            question = partial(waiting.wait_budget(request).acquire, max_wait=left)
            decision = await ask(limiter, question)
            if not decision:
                raise TurnTooLate(request, decision)
            if decision.slots is not None:
                await ask(limiter, partial(_release, decision))
                raise waiting.slots_error()
            response = await self._transport.handle_async_request(request)
            if not waiting.should_retry(request, response, clock.now_async(), give_up):
                return response
            await response.aclose()

    async def aclose(self) -> None:
        """Close the inner transport, which sends the requests."""
        await self._transport.aclose()
