"""The gRPC port: Envoy's rate limit service and the standard health service, on asyncio.

Decides who may call, how much may be under way, and how errors read as gRPC statuses; what is
answered is `rls`'s.
"""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from ringfence.errors import ConfigError, RingfenceError
from ringfence.gateway.rls import BadRequest, RateLimitService
from ringfence.gateway.settings import GatewaySettings
from ringfence.gateway.tokens import Scope, Tokens
from ringfence.transport.interface import Address

__all__ = ["GrpcServer"]

logger = logging.getLogger("ringfence.gateway")

_SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
_HEALTH_NAMES = ("", "ratelimit", _SERVICE)
"""The second is the one that Envoy's `ratelimit` answers to."""
_MOST_AT_ONCE = 4096
_DRAIN = 2.0
_OPTIONS = [
    ("grpc.so_reuseport", 1),  # The workers share the port.
    ("grpc.max_metadata_size", 16_384),
    ("grpc.max_connection_age_ms", 24 * 3_600_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

_Context = grpc.aio.ServicerContext[Any, Any]


class GrpcServer:
    """Serves until stopped; says SERVING from `set_ready` on."""

    def __init__(
        self, service: RateLimitService, tokens: Tokens, settings: GatewaySettings, at: Address
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._service = service
        self._tokens = tokens
        self._settings = settings
        self._at = at
        self._health = health_aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises `ConfigError` when the port cannot be had."""
        options = [*_OPTIONS, ("grpc.max_receive_message_length", self._settings.max_body)]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_AT_ONCE)
        handler: grpc.RpcMethodHandler[bytes, RateLimitResponse]
        handler = grpc.unary_unary_rpc_method_handler(
            self._should_rate_limit,
            # The message is read by ourselves: gRPC would call a broken one an unknown error.
            response_serializer=RateLimitResponse.SerializeToString,
        )
        generic = grpc.method_handlers_generic_handler(_SERVICE, {"ShouldRateLimit": handler})
        server.add_generic_rpc_handlers((generic,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        await self._tell(health_pb2.HealthCheckResponse.NOT_SERVING)
        host, port = self._at
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            port = (
                server.add_secure_port(place, self._credentials())
                if self._settings.tls_cert
                else server.add_insecure_port(place)
            )
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {place} for gRPC: {error}") from error
        await server.start()
        self._server = server
        return port

    async def set_ready(self) -> None:
        """Tell those who watch our health that they may call."""
        await self._tell(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Tell everybody to go elsewhere, finish what is under way, close."""
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(_DRAIN)

    async def _tell(self, status: Any) -> None:
        for name in _HEALTH_NAMES:
            await self._health.set(name, status)

    def _credentials(self) -> grpc.ServerCredentials:
        settings = self._settings
        ca = settings.tls_client_ca
        pair = (Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes())
        return grpc.ssl_server_credentials(
            [pair], Path(ca).read_bytes() if ca else None, require_client_auth=bool(ca)
        )

    async def _should_rate_limit(self, message: bytes, context: _Context) -> RateLimitResponse:
        if not self._tokens.is_open:
            await self._admit(context)
        self.counters["grpc"] += 1
        try:
            request = RateLimitRequest.FromString(message)
            return await self._service.should_rate_limit(request)
        except DecodeError as error:
            self.counters["refused_bad_body"] += 1
            code, why = grpc.StatusCode.INVALID_ARGUMENT, f"no RateLimitRequest: {error}"
        except (BadRequest, ConfigError) as error:
            self.counters["refused_bad_request"] += 1
            code, why = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except RingfenceError as error:
            self.counters["refused_no_cluster"] += 1
            code, why = grpc.StatusCode.UNAVAILABLE, str(error)
        except Exception:
            logger.exception("a bug in Ringfence, met by ShouldRateLimit")
            self.counters["bugs"] += 1
            code, why = grpc.StatusCode.INTERNAL, "a bug in the gateway; its log has more"
        await context.abort(code, why)
        raise AssertionError("abort always raises")

    async def _admit(self, context: _Context) -> None:
        sent = dict(context.invocation_metadata() or ())
        authorization = sent.get("authorization")
        scopes = self._tokens.scopes_of(authorization if isinstance(authorization, str) else None)
        if scopes is None:
            self.counters["refused_unauthorized"] += 1
            why = "send the metadata authorization: Bearer NAME.SECRET with a known token"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        elif Scope.CHECK not in scopes:
            self.counters["refused_forbidden"] += 1
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "the token lacks the scope check"
            )
