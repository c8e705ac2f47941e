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
    reads the message, and a test client needs the error. The end of the shutdown is sent after
    `opened` is closed, because a server may then cancel everything.
    """
    lifespan = _Lifespan(app, receive, send)
    try:
        async with opened:
            await lifespan.run(scope)
    except RingfenceError as error:
        phase = "shutdown" if lifespan.has_started else "startup"
        await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
        raise
    if lifespan.end is not None:
        await send(lifespan.end)


class _Lifespan:
    """Lifespan of an application. It answers the server itself if the application does not."""

    def __init__(self, app: AsgiApp, receive: Receive, send: Send) -> None:
        self._app = app
        self._outer_receive = receive
        self._outer_send = send
        self._has_begun = False
        self._has_answered = False
        self.has_started = False
        """Whether the startup is complete."""
        self.end: Message | None = None
        """Message that ends the shutdown, once the application has sent it."""

    async def run(self, scope: Scope) -> None:
        try:
            await self._app(scope, self._receive, self._send)
        except Exception:
            if self._has_answered:
                raise
        if not self._has_answered:  # It raised or returned: it does not support lifespan events.
            if not self._has_begun:
                await self._receive()
            await self._send({"type": "lifespan.startup.complete"})
            await self._receive()
            await self._send({"type": "lifespan.shutdown.complete"})

    async def _receive(self) -> Message:
        message = await self._outer_receive()
        self._has_begun = True
        return message

    async def _send(self, message: Message) -> None:
        self._has_answered = True
        kind = message["type"]
        if kind.startswith("lifespan.shutdown."):
            self.end = message
            return
        self.has_started = self.has_started or kind == "lifespan.startup.complete"
        await self._outer_send(message)
