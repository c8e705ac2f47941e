"""In-process server and HTTP client for ASGI applications."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from ringfence.integrations._core.lifespan import AsgiApp, Message, Scope

BROWSER = "203.0.113.9"


@dataclass
class Answer:
    messages: list[Message]

    @property
    def status(self) -> int:
        return self.messages[0]["status"]

    @property
    def fields(self) -> list[tuple[str, str]]:
        return [(name.decode(), value.decode()) for name, value in self.messages[0]["headers"]]

    @property
    def headers(self) -> dict[str, str]:
        fields = self.fields
        assert len(dict(fields)) == len(fields), f"a header occurs twice: {fields}"
        return dict(fields)

    @property
    def body(self) -> bytes:
        return b"".join(each["body"] for each in self.messages[1:])


def scope_of(
    path: str = "/", method: str = "GET", peer: str | None = BROWSER, **headers: str
) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "server": ("testserver", 80),
        "client": None if peer is None else (peer, 50000),
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
    }


async def ask(
    app: AsgiApp, path: str = "/", method: str = "GET", peer: str | None = BROWSER, **headers: str
) -> Answer:
    messages: list[Message] = []
    inbox: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope_of(path, method, peer, **headers), receive, send)
    return Answer(messages)


async def statuses(app: AsgiApp, paths: Sequence[str], **headers: str) -> list[int]:
    return [(await ask(app, path, **headers)).status for path in paths]


@asynccontextmanager
async def living(app: AsgiApp) -> AsyncIterator[list[Message]]:
    """Send startup, and shutdown at the end of the block; yield the messages of the application."""
    to_app, inbox = anyio.create_memory_object_stream[Message](2)
    sent: list[Message] = []
    received = anyio.Event()

    async def send(message: Message) -> None:
        sent.append(message)
        received.set()

    async def run_application() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, inbox.receive, send)

    with to_app, inbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_application)
            await to_app.send({"type": "lifespan.startup"})
            await received.wait()
            try:
                yield sent
            finally:
                if sent[0]["type"] == "lifespan.startup.complete":
                    await to_app.send({"type": "lifespan.shutdown"})
