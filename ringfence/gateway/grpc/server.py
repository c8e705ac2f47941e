"""The gRPC server of the gateway: Envoy's rate limit service and the standard health service.

Decides the authorization of calls and the gRPC status of errors. `rls` computes the responses, and
`port` transfers them.
"""

import ssl

from google.protobuf.message import DecodeError

from ringfence.errors import ConfigError, RingfenceError
from ringfence.gateway.grpc.connection import Answer, Call
from ringfence.gateway.grpc.grpc_messages import Refusal, Status
from ringfence.gateway.grpc.health import Health
from ringfence.gateway.grpc.hpack import HeaderBlock
from ringfence.gateway.grpc.port import GrpcPort
from ringfence.gateway.grpc.quick_checks import QuickChecks
from ringfence.gateway.grpc.rls import BadRequest, RateLimitService
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.gateway.process.tls_files import tls_context
from ringfence.gateway.process.tokens import DOMAINS_REFUSED, Tokens
from ringfence.settings.token_file import Scope
from ringfence.transport.interface import Address

__all__ = ["GrpcServer"]

_SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
_SHOULD_RATE_LIMIT = f"/{_SERVICE}/ShouldRateLimit"
_HEALTH_NAMES = ("", "ratelimit", _SERVICE)
"""Service names of the health check. Envoy's `ratelimit` uses the second one."""
_DRAIN = 2.0


class GrpcServer:
    """gRPC server of the gateway. Its health status is SERVING after `set_ready`."""

    def __init__(
        self,
        service: RateLimitService,
        tokens: Tokens,
        settings: GatewaySettings,
        at: Address,
        quick: QuickChecks | None = None,
    ) -> None:
        """`quick`, when given, answers plain requests without a task."""
        self.counters = service.counters
        self._service = service
        self._quick = quick
        self._tokens = tokens
        self._settings = settings
        self._at = at
        self._health = Health(_HEALTH_NAMES)
        self._health_calls = {
            "/grpc.health.v1.Health/Check": self._health.check,
            "/grpc.health.v1.Health/List": self._health.list,
            "/grpc.health.v1.Health/Watch": self._health.watch,
        }
        self._port = GrpcPort(
            self._answer, settings, self._count_refusal, self._begin, self._refusal_of
        )

    async def start(self) -> int:
        """Start to listen; return the port number. Raises `ConfigError` if the address cannot be
        bound."""
        return await self._port.start(self._at, self._tls())

    async def set_ready(self) -> None:
        """Set the health status of the gRPC server to SERVING."""
        self._health.set_serving()

    async def stop(self) -> None:
        """Stop accepting calls, finish the calls in flight, then close all connections."""
        self._health.end()
        await self._port.stop(_DRAIN)

    def _tls(self) -> ssl.SSLContext | None:
        settings = self._settings
        if not settings.tls_cert:
            return None
        context = tls_context(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        context.set_alpn_protocols(["h2"])
        return context

    def _count_refusal(self, cause: str) -> None:
        self.counters[cause if cause == "bugs" else f"refused_{cause}"] += 1

    async def _answer(self, head: HeaderBlock, message: bytes) -> Answer:
        if head.path == _SHOULD_RATE_LIMIT:
            return await self._should_rate_limit(head, message)
        call = self._health_calls.get(head.path)
        if call is None:
            raise Refusal(Status.UNIMPLEMENTED, f"there is no {head.path} here")
        return await call(message)

    def _begin(self, head: HeaderBlock, message: bytes, call: Call) -> bool:
        """Answer a plain request without a task; return False for other calls."""
        if self._quick is None or head.path != _SHOULD_RATE_LIMIT:
            return False
        if not self._tokens.is_open:
            self._admit(head)
        if not self._quick.begin(message, call):
            return False
        self.counters["grpc"] += 1
        return True

    async def _should_rate_limit(self, head: HeaderBlock, message: bytes) -> bytes:
        if not self._tokens.is_open:
            self._admit(head)
        self.counters["grpc"] += 1
        return await self._service.answer(message)

    def _refusal_of(self, error: Exception) -> Refusal | None:
        """Count an error of a call, and return its gRPC status; None for a bug."""
        match error:
            case DecodeError():
                self._count_refusal("bad_body")
                return Refusal(Status.INVALID_ARGUMENT, f"no RateLimitRequest: {error}")
            case BadRequest() | ConfigError():
                self._count_refusal("bad_request")
                return Refusal(Status.INVALID_ARGUMENT, str(error))
            case RingfenceError():
                self._count_refusal("no_cluster")
                return Refusal(Status.UNAVAILABLE, str(error))
        return None

    def _admit(self, head: HeaderBlock) -> None:
        scopes = self._tokens.scopes_of(head.fields.get("authorization"))
        if scopes is None:
            self._count_refusal("unauthorized")
            why = "send the metadata authorization: Bearer NAME.SECRET with a known token"
            raise Refusal(Status.UNAUTHENTICATED, why)
        if Scope.CHECK not in scopes:
            self._count_refusal("forbidden")
            why = "the token lacks the scope check" if scopes else DOMAINS_REFUSED
            raise Refusal(Status.PERMISSION_DENIED, why)
