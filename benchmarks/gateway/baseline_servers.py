"""Servers that send a constant answer with the gateway's server libraries: the lower bound of the
gateway's cost.

`python -m benchmarks.gateway.baseline_servers PORT GRPC_PORT` starts them.
"""

import sys
from typing import Any

import grpc
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from granian.constants import Interfaces, Loops
from granian.log import LogLevels
from granian.server import Server

__all__ = ["make", "serve"]

_BODY = b'{"allowed":true,"limit":1000000000,"remaining":999999999}'
_SERVICE = "envoy.service.ratelimit.v3.RateLimitService"


class Baseline:
    """RSGI application with a constant answer, and a gRPC server beside it."""

    def __init__(self, grpc_port: int) -> None:
        self._grpc_port = grpc_port
        self._answer = RateLimitResponse(overall_code=RateLimitResponse.OK)
        self._answer.statuses.add(code=RateLimitResponse.OK, limit_remaining=1)

    def __rsgi_init__(self, loop: Any) -> None:
        """Start the gRPC server of a worker process."""
        self._task = loop.create_task(self._serve())

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Send the constant answer to one HTTP request."""
        await protocol()
        protocol.response_bytes(200, [("content-type", "application/json")], _BODY)

    async def _serve(self) -> None:
        server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[bytes, RateLimitResponse]
        handler = grpc.unary_unary_rpc_method_handler(
            self._decide, response_serializer=RateLimitResponse.SerializeToString
        )
        generic = grpc.method_handlers_generic_handler(_SERVICE, {"ShouldRateLimit": handler})
        server.add_generic_rpc_handlers((generic,))
        server.add_insecure_port(f"127.0.0.1:{self._grpc_port}")
        await server.start()
        await server.wait_for_termination()

    async def _decide(self, message: bytes, context: Any) -> RateLimitResponse:
        return self._answer


def make() -> Any:
    """Create the application in its worker process."""
    return Baseline(int(sys.argv[2]))


def serve(port: int) -> None:
    """Run the HTTP and gRPC servers until SIGTERM."""
    Server(
        "bare",
        port=port,
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        websockets=False,
        log_level=LogLevels.error,
    ).serve(target_loader=make, wrap_loader=False)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
