"""Driver that calls an ASGI application through uvicorn's HTTP protocol class, without a socket.

A request consists of the bytes that a client would send, and the response is discarded. So the
measurement has all work of the server, and none of the network or of a client.
"""

import asyncio
from collections.abc import Awaitable, Callable

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ringfence.integrations._core.lifespan import AsgiApp

__all__ = ["served"]

_REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\nuser-agent: bench\r\n\r\n"


class _Nowhere(asyncio.Transport):
    """Transport that discards all written bytes immediately."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": ("127.0.0.1", 80)})
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        raise AssertionError("the server closed the connection: it did not like the request")


def served(app: AsgiApp, peer: str) -> Callable[[], Awaitable[object]]:
    """Return a function that sends one request over a persistent connection and awaits its
    response."""
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None)
    config.load()
    config.access_log = False
    state = ServerState()
    protocol = HttpToolsProtocol(config, state, {}, asyncio.get_running_loop())
    transport = _Nowhere((peer, 50000))
    protocol.connection_made(transport)

    async def ask() -> None:
        before = transport.written
        protocol.data_received(_REQUEST)
        await asyncio.gather(*state.tasks)
        assert transport.written > before

    return ask
