"""Opens a limiter for as long as an ASGI application lives.

A server announces an application's start and end in one long `lifespan` call. The limiter is open
around the application's own part in it, and for applications that know nothing of lifespans too.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from ringfence.errors import RingfenceError

__all__ = ["AsgiApp", "Message", "Receive", "Scope", "Send", "live"]

# ASGI's own types: dictionaries whose values its specification names, and no type can.
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


async def live(
    opened: AbstractAsyncContextManager[object],
    app: AsgiApp,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Let `app` live while `opened` is; wrong settings end the start with their message.

    They are raised, too: a server looks at the message, a test client waits for the error.
    """
    try:
        async with opened:
            await _Life(app, receive, send).run(scope)
    except RingfenceError as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise


class _Life:
    """The application's lifespan, ours in its place where it has none."""

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
        if not self._has_answered:  # By raising or returning, it said that it has no lifespan.
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
