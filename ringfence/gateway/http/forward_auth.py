"""Forward authentication (`/v1/auth`): a proxy asks whether a request may pass.

For `auth_request` of nginx, forward authentication of Caddy and Traefik, and HAProxy. The proxy
describes the original request by headers. This module restores that request and formats denials;
the class `Keys` reads the descriptors from the request.
"""

from collections import Counter
from urllib.parse import parse_qsl

from msgspec.structs import replace

from ringfence.client.limiter import Limiter
from ringfence.gateway.http.http_types import UNREADABLE, Exchange, HttpProblem, Response
from ringfence.gateway.http.path_normalization import path_part, plain_path
from ringfence.gateway.process.metrics import decided
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.http.headers import LimitHeaders
from ringfence.http.paths import has_one_reading
from ringfence.http.too_many_requests_body import Refused, refused_body

__all__ = ["ForwardAuth"]

_DENIALS = {"429": 429, "403": 403}


class ForwardAuth:
    """Handler of `/v1/auth`: answers 200, 429 or 403, with rate limit headers."""

    def __init__(self, limiter: Limiter, settings: GatewaySettings, counters: Counter[str]) -> None:
        self._limiter = limiter
        self._counters = counters
        self._domain = settings.domain
        self._deadline = settings.deadline
        self._deny_status = settings.deny_status
        self._headers = LimitHeaders(settings.headers)
        self._address_header = settings.address_header.lower()
        self._uri_header = settings.uri_header.lower()
        self._method_header = settings.method_header.lower()
        self._exempt_methods = frozenset(method.upper() for method in settings.exempt_methods)
        self._exempt_paths = tuple([plain_path(each) for each in settings.exempt_paths])
        self._keys = settings.keys

    async def answer(self, exchange: Exchange) -> Response:
        """Check the client's request, which the proxy describes in headers, against the rules."""
        deny_status = self._denial(exchange.query)
        uri = exchange.header(self._uri_header) or "/"
        if uri == UNREADABLE:
            # A denial instead of 400: a proxy may treat 400 as an outage and let the request pass.
            raise HttpProblem(
                deny_status, "the path must be ASCII; escape other characters, as in /caf%C3%A9"
            )
        if exchange.header(self._address_header) == UNREADABLE:
            raise HttpProblem(
                deny_status, f"{self._address_header} must be ASCII; remove other bytes"
            )
        original = self._original(exchange, uri)
        if original.method in self._exempt_methods or self._is_exempt(uri, original.path):
            return Response(200)
        descriptors = self._keys.descriptors(original)
        if not descriptors:
            return Response(200)
        decision = await self._limiter.check(self._domain, descriptors, timeout=self._deadline)
        self._counters[decided(decision)] += 1
        headers = self._headers.of(decision)
        if decision.allowed:
            return Response(200, headers=headers)
        # The same status for every denial: proxies treat an unknown status as an outage.
        accept = exchange.header("accept") if deny_status == 429 else None
        body = refused_body(replace(Refused.of(decision, accept), status=deny_status))
        return Response(deny_status, body.content, body.content_type, headers)

    def _original(self, exchange: Exchange, uri: str) -> "_Original":
        method = exchange.header(self._method_header) or exchange.method
        return _Original(exchange, method.upper(), plain_path(uri))

    def _denial(self, query: str) -> int:
        """Return the HTTP status of denials, which the parameter `deny_status` of the query can
        set."""
        if not query:
            return self._deny_status
        asked = dict(parse_qsl(query, keep_blank_values=True)).get("deny_status")
        if asked is None:
            return self._deny_status
        if asked not in _DENIALS:
            raise HttpProblem(400, "deny_status must be 429 or 403")
        return _DENIALS[asked]

    def _is_exempt(self, uri: str, path: str) -> bool:
        if not any([_is_below(path, exempt) for exempt in self._exempt_paths]):
            return False
        return has_one_reading(path_part(uri))


class _Original:
    """Request of the client, restored from the proxy's headers; `Keys` reads descriptors from
    it."""

    __slots__ = ("_exchange", "method", "path")

    def __init__(self, exchange: Exchange, method: str, path: str) -> None:
        self._exchange = exchange
        self.method = method
        self.path = path

    @property
    def peer(self) -> str | None:
        return self._exchange.peer

    @property
    def route(self) -> str | None:
        return None

    @property
    def user(self) -> str | None:
        return None

    @property
    def native(self) -> object:
        return self._exchange

    def header(self, name: str) -> str | None:
        if name == "host":
            return self._exchange.header("x-forwarded-host") or self._exchange.header("host")
        return self._exchange.header(name)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
