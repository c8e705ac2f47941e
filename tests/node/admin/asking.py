"""Client of the admin application that needs no server."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.admin.app import AdminApp, Render
from node.admin.http_messages import AdminRequest, AdminResponse
from node.admin.throttle import Throttle
from node.node import Node

LOCAL = {"host": "127.0.0.1:7180"}


def app_of(node: Node) -> AdminApp:
    """Return the admin application. It renders without a thread, so that virtual time works."""

    async def render_at_once(render: Render) -> AdminResponse:
        return render()

    return AdminApp(node, Throttle(1000.0, 1000), render_at_once)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: AdminApp, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    raw, _, query = path.partition("?")
    sent = {
        name.encode(): value.encode()
        for name, value in (LOCAL if headers is None else headers).items()
    }
    response = await app.respond(AdminRequest(method, raw, query.encode(), sent))
    if response.on_sent is not None:
        response.on_sent()
    found = {name.decode(): value.decode() for name, value in response.all_headers()}
    assert int(found["content-length"]) == len(response.body)
    return Answer(response.status, found, response.body)
