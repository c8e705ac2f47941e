"""Standard gRPC health service: single queries and watches."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListResponse

from ringfence.gateway.grpc.connection import Answer
from ringfence.gateway.grpc.grpc_messages import Refusal, Status

__all__ = ["Health"]

_NOT_SERVING, _SERVING = HealthCheckResponse.NOT_SERVING, HealthCheckResponse.SERVING


class Health:
    """gRPC health status; all service names have the same status."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._status = _NOT_SERVING
        self._changed = asyncio.Event()
        self._is_over = False

    def set_serving(self) -> None:
        """Set the health status to SERVING and notify all watching clients."""
        self._set(_SERVING)

    def end(self) -> None:
        """Set the health status to NOT_SERVING, then end the calls of all watching clients."""
        self._is_over = True
        self._set(_NOT_SERVING)

    async def check(self, message: bytes) -> Answer:
        """Return the health status of one service name. Raises `Refusal`."""
        if _name_in(message) not in self._names:
            raise Refusal(Status.NOT_FOUND, "there is no such service here")
        return _told(self._status)

    async def list(self, message: bytes) -> Answer:
        """Return the health status of all service names."""
        statuses = {name: HealthCheckResponse(status=self._status) for name in self._names}
        return bytes(HealthListResponse(statuses=statuses).SerializeToString())

    async def watch(self, message: bytes) -> Answer:
        """Yield the health status of one service name now and after each change. Raises
        `Refusal`."""
        return self._changes(is_known=_name_in(message) in self._names)

    async def _changes(self, *, is_known: bool) -> AsyncIterator[bytes]:
        while True:
            changed = self._changed
            yield _told(self._status if is_known else HealthCheckResponse.SERVICE_UNKNOWN)
            if self._is_over:
                raise Refusal(Status.UNAVAILABLE, "the gateway is stopping")
            await changed.wait()

    def _set(self, status: "HealthCheckResponse.ServingStatus") -> None:
        self._status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _name_in(message: bytes) -> str:
    try:
        return str(HealthCheckRequest.FromString(message).service)
    except DecodeError as error:
        raise Refusal(Status.INVALID_ARGUMENT, f"no HealthCheckRequest: {error}") from error


def _told(status: "HealthCheckResponse.ServingStatus") -> bytes:
    return bytes(HealthCheckResponse(status=status).SerializeToString())
