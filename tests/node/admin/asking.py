"""Asks the operator's application as a server would, without any."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from node.admin.app import AdminApp
from node.admin.responses import Reply
from node.admin.throttle import Throttle
from node.node import Node

LOCAL = {"host": "127.0.0.1:7180"}


def app_of(node: Node) -> AdminApp:
    """The application as the port has it, but that virtual time must not run on beside a thread."""

    async def at_once(write: Callable[[], Reply]) -> Reply:
        return write()

    return AdminApp(node, Throttle(1000.0, 1000), at_once)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: AdminApp,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    raw, _, query = path.partition("?")
    sent: list[dict[str, Any]] = []
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)] or [b""]

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [
            (name.encode(), value.encode())
            for name, value in (LOCAL if headers is None else headers).items()
        ],
    }
    await app(scope, receive, send)
    start, end = sent
    assert start["type"] == "http.response.start"
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    assert int(found["content-length"]) == len(end["body"])
    return Answer(start["status"], found, end["body"])
