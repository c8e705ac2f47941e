"""ASGI lifespan: opens the limiter before the application starts, and closes it after the
application ends.

A server announces start and end in one long `lifespan` call. Applications that do not support
lifespan events are served as well.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from ringfence.errors import RingfenceError

__all__ = ["AsgiApp", "Message", "Receive", "Scope", "Send", "run_lifespan"]

# The types of ASGI: dictionaries whose values depend on their `type`.
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


async def run_lifespan(
    opened: AbstractAsyncContextManager[object],
    app: AsgiApp,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Run the lifespan of the application `app`; the context manager `opened` is open during this
    time.

    Invalid settings fail the startup with their message. The error is raised as well: a server
    reads the message, and a test client needs the error.
    """
    try:
        async with opened:
            await _Lifespan(app, receive, send).run(scope)
    except RingfenceError as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise


class _Lifespan:
    """Lifespan of an application. It answers the server itself if the application does not."""

    def __init__(self, app: AsgiApp, receive: Receive, send: Send) -> None:
        self._app = app
        self._outer_receive = receive
        self._outer_send = send
        self._has_begun = False
        self._has_answered = False

    async def run(self, scope: Scope) -> None:
        try:
            await self._app(scope, self._receive, self._send)
        except Exception:
            if self._has_answered:
                raise
        if not self._has_answered:  # It raised or returned: it does not support lifespan events.
            if not self._has_begun:
                await self._receive()
            await self._outer_send({"type": "lifespan.startup.complete"})
            await self._receive()
            await self._outer_send({"type": "lifespan.shutdown.complete"})

    async def _receive(self) -> Message:
        message = await self._outer_receive()
        self._has_begun = True
        return message

    async def _send(self, message: Message) -> None:
        self._has_answered = True
        await self._outer_send(message)
