"""The ASGI application of the operator's port: which path gives what, to whom, and how often.

Views are made by `views`, `metrics` and `overview`; connections are `port`'s.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec
import trio

from hashring import SHARDS
from node.admin import dashboard, metrics, views
from node.admin.auth import admit
from node.admin.responses import Problem, Reply, json_reply
from node.admin.summary import Summary
from node.admin.throttle import Throttle
from node.config.access import Scope
from node.node import Node
from ringfence.peering.columns import Batch
from ringfence.rules import Descriptor
from ringfence.wire import Op, Source

__all__ = ["OPEN_METRICS", "AdminApp", "read_body"]

logger = logging.getLogger("ringfence.node")

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
"""The other text that scrapers may ask for."""
_FRESH = 1.0
"""Seconds for which members and metrics are given again."""
_RULES_FRESH = 10.0
"""Seconds for which the same rules are given again."""
_LONGEST_BODY = 4096
_MOST_FIELDS = 32
_MOST_THROTTLED = 256

AsgiScope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Beside: TypeAlias = Callable[[Callable[[], Reply]], Awaitable[Reply]]
"""Has something done beside the node's loop."""


async def in_thread(write: Callable[[], Reply]) -> Reply:
    """Write in a thread: checks that come meanwhile wait for a few milliseconds at most."""
    return await trio.to_thread.run_sync(write, abandon_on_cancel=True)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, read."""

    query: list[tuple[str, str]]
    accept: str
    rest: str
    """What stands in the path after the route's own part."""


@dataclass(frozen=True, slots=True)
class _Route:
    handle: Callable[[_Asked], Awaitable[Reply]]
    scope: Scope | None = Scope.OBSERVE
    """What the token must allow; None lets everybody in."""
    method: str = "GET"
    is_prefix: bool = False
    needs_node: bool = True
    """Whether there is nothing to tell before the node runs."""


class AdminApp:
    """Answers for one node."""

    def __init__(self, node: Node, pace: Throttle, beside: Beside = in_thread) -> None:
        node.measure()
        self._node = node
        self._pace = pace
        self._overview = Summary(node)
        self._metrics = {"": _Kept(_FRESH, beside), OPEN_METRICS: _Kept(_FRESH, beside)}
        self._members = _Kept(_FRESH, beside)
        self._rules = _Kept(_RULES_FRESH, beside)
        self._routes = {
            "/": _Route(self._page, needs_node=False),
            "/healthz": _Route(self._health, None, needs_node=False),
            "/readyz": _Route(self._ready, None, needs_node=False),
            "/metrics": _Route(self._metrics_text),
            "/v1/cluster": _Route(self._cluster),
            "/v1/members": _Route(self._members_told),
            "/v1/ring": _Route(self._ring),
            "/v1/rules": _Route(self._rules_told),
            "/v1/keys/": _Route(self._key, is_prefix=True),
            "/v1/throttled": _Route(self._throttled),
            "/v1/leave": _Route(self._leave, Scope.ADMIN, "POST"),
        }

    async def run(self) -> None:
        """There is nothing to do between requests."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever goes wrong, the node goes on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            return
        has_turn = False
        try:
            name, route = self._admitted(scope)
            if route.scope is not None:
                await self._pace.turn()
                has_turn = True
            reply = await self._answer(scope, receive, name, route)
        except Problem as problem:
            self._node.refused(f"http_{problem.status}")
            reply = problem.reply()
        except Exception as error:  # noqa: BLE001 - one request's, which is answered with 500.
            self._node.containment.failed("http", error)
            self._node.refused("http_500")
            reply = Problem(500, "a bug in Ringfence", "the node's log tells more").reply()
        if not has_turn:
            # A flood must not fail a probe, so health checks and refusals do not queue. Each closes
            # its connection instead, and connections are bounded.
            reply = reply.as_last()
        start = {"status": reply.status, "headers": reply.all_headers()}
        try:
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": reply.body})
        finally:
            if reply.then is not None:  # Even when nobody waits for the answer any more.
                reply.then()

    def _admitted(self, scope: AsgiScope) -> tuple[str, "_Route"]:
        """Find the route of a request and check its token. Raises `Problem`."""
        method = scope["method"]
        name, route = self._route_of(_path_of(scope))
        if method != route.method and (method, route.method) != ("HEAD", "GET"):
            raise Problem(
                405,
                f"{method[:20]} is not for {name}",
                f"use {route.method}",
                headers=[(b"allow", route.method.encode("ascii"))],
            )
        if route.scope is not None:
            admit(self._node.access, route.scope, method, dict(scope["headers"]))
        return name, route

    async def _answer(
        self, scope: AsgiScope, receive: Receive, name: str, route: "_Route"
    ) -> Reply:
        path = _path_of(scope)
        headers = dict(scope["headers"])
        await read_body(headers, receive)
        if route.needs_node and not self._node.is_running:
            raise Problem(503, f"node {self._node.name} is starting", "ask again in a moment")
        accept = headers.get(b"accept", b"").decode("latin-1")
        return await route.handle(
            _Asked(
                _query(scope["query_string"]), accept, unquote(path[len(name) :], errors="replace")
            )
        )

    def _route_of(self, path: str) -> tuple[str, _Route]:
        route = self._routes.get(path)
        if route is not None and not route.is_prefix:
            return path, route
        for name, other in self._routes.items():
            if other.is_prefix and path.startswith(name) and len(path) > len(name):
                return name, other
        known = ", ".join(name + ("DOMAIN" * it.is_prefix) for name, it in self._routes.items())
        raise Problem(404, f"there is no {unquote(path)[:100]!r} here", f"there are {known}")

    # -- health --------------------------------------------------------------------------------

    async def _health(self, asked: _Asked) -> Reply:
        return json_reply({"status": "alive", "node": self._node.name})

    async def _ready(self, asked: _Asked) -> Reply:
        node = self._node
        if not views.is_ready(node):
            state = node.state if node.is_running else "starting"
            raise Problem(
                503, f"node {node.name} is {state}", "send checks to another node meanwhile"
            )
        return json_reply({"status": "ready", "node": node.name, "state": node.state})

    # -- views ---------------------------------------------------------------------------------

    async def _page(self, asked: _Asked) -> Reply:
        return dashboard.reply()

    async def _cluster(self, asked: _Asked) -> Reply:
        return json_reply(await self._overview.get())

    async def _members_told(self, asked: _Asked) -> Reply:
        def prepare() -> Callable[[], Reply]:
            found = views.members_view(self._node)
            return lambda: json_reply(found)

        return await self._members.get(None, prepare)

    async def _ring(self, asked: _Asked) -> Reply:
        shard = _number(asked, "shard", 0, SHARDS - 1)
        return json_reply(views.ring_view(self._node, shard))

    async def _throttled(self, asked: _Asked) -> Reply:
        count = _number(asked, "count", 1, _MOST_THROTTLED) or 20
        gathered = await self._overview.gathered()
        return json_reply(views.throttled_view(self._node, gathered.lists, gathered.missing, count))

    async def _rules_told(self, asked: _Asked) -> Reply:
        rules, where = self._node.rule_set, views.datacenters_of(self._node)

        def prepare() -> Callable[[], Reply]:
            counts, _ = self._node.sizes()
            return lambda: json_reply(views.rules_view(rules, where, counts))

        return await self._rules.get((rules.version, where), prepare)

    async def _metrics_text(self, asked: _Asked) -> Reply:
        kind = OPEN_METRICS if OPEN_METRICS.partition(";")[0] in asked.accept else ""

        def prepare() -> Callable[[], Reply]:
            found = metrics.families(self._node)
            return lambda: Reply(*metrics.render(found, kind))

        return await self._metrics[kind].get(None, prepare)

    async def _key(self, asked: _Asked) -> Reply:
        node = self._node
        match = views.match_of(node.rule_set, asked.rest, Descriptor(tuple(asked.query)))
        if match.rule.limit is None:
            return json_reply(views.key_view(node, match, None))
        verdicts = await node.ask(Batch(Op.CHECK, [match.key], [0]))
        if verdicts.sources[0] not in (Source.OWNER, Source.STANDBY):
            raise Problem(
                503, "no node that has this key answers", "see /v1/members; ask again in a moment"
            )
        return json_reply(views.key_view(node, match, verdicts))

    async def _leave(self, asked: _Asked) -> Reply:
        body = msgspec.json.encode({"status": "leaving", "node": self._node.name}) + b"\n"
        return Reply(body, status=202, then=self._node.ask_to_leave)


class _Kept:
    """An answer that costs something, given again while it is fresh."""

    def __init__(self, fresh: float, beside: Beside) -> None:
        self._fresh = fresh
        self._beside = beside
        self._line = trio.Lock()
        self._key: object = None
        self._at = -inf
        self._reply: Reply | None = None

    async def get(self, key: object, prepare: Callable[[], Callable[[], Reply]]) -> Reply:
        """Give what is kept, or make it anew.

        `prepare` reads the node; what it returns writes that down, and touches nothing of it.
        """
        async with self._line:
            is_old = key != self._key or trio.current_time() - self._at >= self._fresh
            if self._reply is None or is_old:
                self._reply = await self._beside(prepare())
                self._key, self._at = key, trio.current_time()
            return self._reply


async def read_body(headers: Mapping[bytes, bytes], receive: Receive) -> None:
    """Take what comes with a request and is of no use; refuse much of it."""
    size = headers.get(b"content-length", b"0")
    too_long = Problem(
        413, f"a body of more than {_LONGEST_BODY} bytes", "nothing here takes a body: send none"
    )
    with suppress(ValueError):
        if int(size) > _LONGEST_BODY:
            raise too_long
    taken, more = 0, True
    while more:
        message = await receive()
        taken += len(message.get("body", b""))
        more = message.get("more_body", False)
        if taken > _LONGEST_BODY:
            raise too_long


def _path_of(scope: AsgiScope) -> str:
    raw: bytes = scope["raw_path"]
    return raw.partition(b"?")[0].decode("latin-1")


def _query(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Problem(
            400, f"the query has more than {_MOST_FIELDS} fields", "write fewer"
        ) from error


def _number(asked: _Asked, name: str, least: int, most: int) -> int | None:
    text = dict(asked.query).get(name)
    if text is None:
        return None
    if not (text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise Problem(
            400, f"{name}={text[:40]} is no number from {least} to {most}", f"write {name}={least}"
        )
    return int(text)
