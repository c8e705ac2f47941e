"""Transports for httpx that make outgoing requests wait for their turn under a limit.

For calling others no more often than they allow, however many processes do the calling: the budget
is the cluster's. Optionally they also heed a 429 or 503 with `Retry-After` of the other side.
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

from ringfence.client import Decision, Descriptors, Limiter
from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.client.requests.descriptors import checked_seconds
from ringfence.http.callback_checks import require_arguments
from ringfence.integrations._core import clock
from ringfence.integrations._core.limit_target import AdHoc, Budget, ByRules, require_one
from ringfence.integrations._core.over_limit import OverLimit
from ringfence.integrations._core.retry_after import Pauses, seconds_in
from ringfence.integrations._core.thread_bridge import ask
from ringfence.limiter import Limit

__all__ = ["AsyncWaitingTransport", "TurnTooLate", "WaitingTransport", "by_host"]

_ASKS_FOR_PATIENCE = (429, 503)


class TurnTooLate(OverLimit, httpx.TransportError):
    """A request was not sent, for its turn would have come later than it was to wait."""

    def __init__(self, request: httpx.Request, decision: Decision) -> None:
        OverLimit.__init__(self, f"{request.method} {request.url.copy_with(query=None)}", decision)
        self._request = request


def by_host(request: httpx.Request) -> str:
    """The usual key: one budget per host that is called."""
    return request.url.host


class _Waiting:
    """What both transports have in common: whose budget a request spends, and when to try again."""

    def __init__(
        self,
        limit: str | Limit | None,
        key: Callable[[httpx.Request], str],
        domain: str | None,
        descriptors: Callable[[httpx.Request], Descriptors] | None,
        max_wait: float,
        heed_retry_after: bool,
    ) -> None:
        require_one(limit, domain, descriptors)
        require_arguments("key", key, "request")
        if descriptors is not None:
            require_arguments("descriptors", descriptors, "request")
        self.max_wait = checked_seconds("max_wait", max_wait)
        self._limit = limit
        self._key = key
        self._domain = domain
        self._descriptors = descriptors
        self._heeds = heed_retry_after
        self._pauses = Pauses()

    def budget(self, request: httpx.Request) -> Budget:
        """What a request spends."""
        if self._limit is not None:
            return AdHoc(self._limit, ("httpx", self._key(request)), 1)
        assert self._domain is not None
        assert self._descriptors is not None
        return ByRules(self._domain, self._descriptors(request), 1)

    def pause(self, request: httpx.Request, now: float) -> float:
        """Seconds for which the other side has asked to be left alone."""
        return self._pauses.left(self._key(request), now) if self._heeds else 0.0

    def should_try_again(
        self, request: httpx.Request, response: httpx.Response, now: float, give_up: float
    ) -> bool:
        """Note what the response asks for; whether to send the request again after that pause."""
        if not self._heeds or response.status_code not in _ASKS_FOR_PATIENCE:
            return False
        seconds = seconds_in(response.headers.get("retry-after"))
        if seconds is None:
            return False
        self._pauses.begin(self._key(request), now, seconds)
        # A body that was streamed is gone; httpx keeps the others as bytes.
        return isinstance(request.stream, httpx.ByteStream) and now + seconds <= give_up


class WaitingTransport(httpx.BaseTransport):
    """For `httpx.Client(transport=WaitingTransport(limiter, "10/s"))`.

    Each request spends one unit of `limit` per `key` (the host, unless said otherwise), or of
    whatever the rules of `domain` say of `descriptors`. It waits for its turn, at most `max_wait`
    seconds in all; then `TurnTooLate` is raised and nothing was sent.

    With `heed_retry_after`, a 429 or 503 that names a time makes the requests of that key wait so
    long, and the one that met it is sent again, if `max_wait` allows; else the response is
    returned. `transport` does the sending; httpx's usual one when None.
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
        heed_retry_after: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._limiter = limiter
        self._waiting = _Waiting(limit, key, domain, descriptors, max_wait, heed_retry_after)
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait, then send."""
        waiting = self._waiting
        give_up = clock.now() + waiting.max_wait
        while True:
            pause = waiting.pause(request, clock.now())
            clock.sleep(min(pause, max(0.0, give_up - clock.now())))
            left = max(0.0, give_up - clock.now())
            question = partial(waiting.budget(request).acquire, max_wait=left)
            decision = self._limiter.run(question)
            if not decision:
                raise TurnTooLate(request, decision)
            response = self._transport.handle_request(request)
            if not waiting.should_try_again(request, response, clock.now(), give_up):
                return response
            response.close()

    def close(self) -> None:
        """Close the transport that does the sending."""
        self._transport.close()


class AsyncWaitingTransport(httpx.AsyncBaseTransport):
    """`WaitingTransport` for `httpx.AsyncClient`, on asyncio and trio; takes either limiter."""

    def __init__(
        self,
        limiter: Limiter | BlockingLimiter,
        limit: str | Limit | None = None,
        *,
        key: Callable[[httpx.Request], str] = by_host,
        domain: str | None = None,
        descriptors: Callable[[httpx.Request], Descriptors] | None = None,
        max_wait: float = 30.0,
        heed_retry_after: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limiter = limiter
        self._waiting = _Waiting(limit, key, domain, descriptors, max_wait, heed_retry_after)
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait, then send."""
        waiting, limiter = self._waiting, self._limiter
        give_up = clock.now_async() + waiting.max_wait
        while True:
            pause = waiting.pause(request, clock.now_async())
            await clock.sleep_async(min(pause, max(0.0, give_up - clock.now_async())))
            left = max(0.0, give_up - clock.now_async())
            question = partial(waiting.budget(request).acquire, max_wait=left)
            if isinstance(limiter, Limiter):
                decision = await question(limiter)
            else:
                decision = await ask(limiter, question)
            if not decision:
                raise TurnTooLate(request, decision)
            response = await self._transport.handle_async_request(request)
            if not waiting.should_try_again(request, response, clock.now_async(), give_up):
                return response
            await response.aclose()

    async def aclose(self) -> None:
        """Close the transport that does the sending."""
        await self._transport.aclose()
