"""Application of the admin port: routes, authorization, and cached responses.

`views`, `metrics` and `summary` make the content; `port` and `connection` do the I/O.
"""

import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec
import trio
from msgspec import Struct

from hashring import SHARDS
from node.admin import dashboard, metrics, views
from node.admin.auth import authorize
from node.admin.http_messages import AdminRequest, AdminResponse, HttpProblem, json_response
from node.admin.lock import Lock
from node.admin.summary import ClusterSummary
from node.admin.throttle import Throttle
from node.node import Node
from ringfence import runtime
from ringfence.rules import Descriptor, Rule
from ringfence.settings.token_file import Scope
from ringfence.wire import Batch, Op, Source

__all__ = ["OPEN_METRICS", "AdminApp"]

logger = logging.getLogger("ringfence.node")

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
"""Content type of OpenMetrics, which scrapers may ask for."""
_FRESH = 1.0
"""Seconds for which members and metrics are answered from a cache."""
_RULES_FRESH = 10.0
"""Seconds for which rules are answered from a cache."""
_MAX_QUERY_FIELDS = 32
_MAX_THROTTLED = 256

Render: TypeAlias = Callable[[], AdminResponse]
"""Renders a response from values, without access to the node."""
RunRender: TypeAlias = Callable[[Render], Awaitable[AdminResponse]]


async def render_in_thread(render: Render) -> AdminResponse:
    """Call a rendering function in a thread, so that concurrent checks are delayed by only a few
    milliseconds."""
    return await trio.to_thread.run_sync(render, abandon_on_cancel=True)


class _RouteRequest(Struct, frozen=True):
    """Parts of an HTTP request to the admin port, parsed for the function that answers its
    route."""

    query: list[tuple[str, str]]
    accept: str
    suffix: str
    """The part of the path after the route's own path."""


class _AdminRoute(Struct, frozen=True):
    handle: Callable[[_RouteRequest], Awaitable[AdminResponse]]
    scope: Scope | None = Scope.OBSERVE
    """Scope that the token must have; None for routes without a token."""
    method: str = "GET"
    is_prefix: bool = False
    needs_node: bool = True
    """Whether the route is unavailable until the node runs."""


class AdminApp:
    """HTTP application that answers the requests to the admin port of one node."""

    def __init__(
        self, node: Node, throttle: Throttle, run_render: RunRender = render_in_thread
    ) -> None:
        """`throttle` limits the rate of requests that carry a token; `run_render` runs the function
        that renders a response."""
        node.queries.measure()
        self._node = node
        self._throttle = throttle
        self._summary = ClusterSummary(node)
        self._metrics = {
            "": _CachedResponse(_FRESH, run_render),
            OPEN_METRICS: _CachedResponse(_FRESH, run_render),
        }
        self._members = _CachedResponse(_FRESH, run_render)
        self._rules = _CachedResponse(_RULES_FRESH, run_render)
        self._routes = {
            "/": _AdminRoute(self._get_dashboard, needs_node=False),
            "/healthz": _AdminRoute(self._get_health, None, needs_node=False),
            "/readyz": _AdminRoute(self._get_readiness, None, needs_node=False),
            "/metrics": _AdminRoute(self._get_metrics),
            "/v1/cluster": _AdminRoute(self._get_cluster),
            "/v1/members": _AdminRoute(self._get_members),
            "/v1/ring": _AdminRoute(self._get_ring),
            "/v1/rules": _AdminRoute(self._get_rules),
            "/v1/keys/": _AdminRoute(self._get_key, is_prefix=True),
            "/v1/throttled": _AdminRoute(self._get_throttled),
            "/v1/leave": _AdminRoute(self._post_leave, Scope.ADMIN, "POST"),
        }

    async def respond(self, request: AdminRequest) -> AdminResponse:
        """Answer one HTTP request. An internal error becomes status 500."""
        has_turn = False
        try:
            name, route = self._route_of(request)
            if route.scope is not None:
                authorize(self._node.access.current, route.scope, request)
                await self._throttle.turn()
                has_turn = True
            response = await self._handle(request, name, route)
        except HttpProblem as problem:
            self._node.counters.refused(f"http_{problem.status}")
            response = problem.response()
        except Exception as error:  # noqa: BLE001 - one failed request must not end the node.
            self._node.containment.failed("http", error)
            self._node.counters.refused("http_500")
            response = HttpProblem(
                500, "internal error of Ringfence", "see the log of the node"
            ).response()
        # Health checks and refusals skip the throttle, so that a flood does not fail a probe.
        # They close their connection instead, and the rate of new connections is limited.
        return response if has_turn else response.as_last()

    async def _handle(self, request: AdminRequest, name: str, route: _AdminRoute) -> AdminResponse:
        if route.needs_node and not self._node.is_running:
            raise HttpProblem(503, f"node {self._node.name} is starting", "retry in a moment")
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        suffix = unquote(request.path[len(name) :], errors="replace")
        return await route.handle(_RouteRequest(_query(request.query), accept, suffix))

    def _route_of(self, request: AdminRequest) -> tuple[str, _AdminRoute]:
        """Find the route for the path and method of a request. Raises `HttpProblem`."""
        name, route = self._route_of_path(request.path)
        method = request.method
        if method != route.method and (method, route.method) != ("HEAD", "GET"):
            raise HttpProblem(
                405,
                f"the method for {name} must be {route.method}, got {method[:20]}",
                f"use {route.method}",
                headers=[(b"allow", route.method.encode("ascii"))],
            )
        return name, route

    def _route_of_path(self, path: str) -> tuple[str, _AdminRoute]:
        route = self._routes.get(path)
        if route is not None and not route.is_prefix:
            return path, route
        for name, other in self._routes.items():
            if other.is_prefix and path.startswith(name) and len(path) > len(name):
                return name, other
        known = ", ".join(name + ("DOMAIN" * it.is_prefix) for name, it in self._routes.items())
        raise HttpProblem(404, f"unknown path {unquote(path)[:100]!r}", f"the paths are {known}")

    # -- health --------------------------------------------------------------------------------

    async def _get_health(self, request: _RouteRequest) -> AdminResponse:
        return json_response({"status": "alive", "node": self._node.name})

    async def _get_readiness(self, request: _RouteRequest) -> AdminResponse:
        node = self._node
        if not views.is_ready(node):
            state = node.state if node.is_running else "starting"
            raise HttpProblem(
                503, f"node {node.name} is {state}", "send checks to another node meanwhile"
            )
        return json_response({"status": "ready", "node": node.name, "state": node.state})

    # -- views ---------------------------------------------------------------------------------

    async def _get_dashboard(self, request: _RouteRequest) -> AdminResponse:
        return dashboard.response()

    async def _get_cluster(self, request: _RouteRequest) -> AdminResponse:
        return json_response(await self._summary.get())

    async def _get_members(self, request: _RouteRequest) -> AdminResponse:
        def prepare() -> Render:
            found = views.members_view(self._node)
            return lambda: json_response(found)

        return await self._members.get(None, prepare)

    async def _get_ring(self, request: _RouteRequest) -> AdminResponse:
        shard = _number(request, "shard", 0, SHARDS - 1)
        return json_response(views.ring_view(self._node, shard))

    async def _get_throttled(self, request: _RouteRequest) -> AdminResponse:
        count = _number(request, "count", 1, _MAX_THROTTLED) or 20
        answers = await self._summary.answers()
        return json_response(
            views.throttled_view(self._node, answers.lists, answers.not_counted, count)
        )

    async def _get_rules(self, request: _RouteRequest) -> AdminResponse:
        rules, where = self._node.rules.current, views.datacenters_of(self._node)
        engine = self._node.shards.engine

        def prepare() -> Render:
            counts, _ = engine.sizes()
            is_compiled = engine.is_compiled
            return lambda: json_response(
                views.rules_view(rules, where, counts, is_compiled=is_compiled)
            )

        return await self._rules.get((rules.version, where), prepare)

    async def _get_metrics(self, request: _RouteRequest) -> AdminResponse:
        kind = OPEN_METRICS if OPEN_METRICS.partition(";")[0] in request.accept else ""

        def prepare() -> Render:
            found = metrics.families(self._node)
            return lambda: AdminResponse(*metrics.render(found, kind))

        return await self._metrics[kind].get(None, prepare)

    async def _get_key(self, request: _RouteRequest) -> AdminResponse:
        node = self._node
        match = views.match_of(node.rules.current, request.suffix, Descriptor(tuple(request.query)))
        if match.rule.limit is None:
            return json_response(views.key_view(node, match, None))
        results = await node.ask(Batch(Op.CHECK, [match.key], [0]))
        if results.sources[0] not in (Source.OWNER, Source.STANDBY):
            raise _no_decider(match.rule)
        return json_response(views.key_view(node, match, results))

    async def _post_leave(self, request: _RouteRequest) -> AdminResponse:
        body = msgspec.json.encode({"status": "leaving", "node": self._node.name}) + b"\n"
        return AdminResponse(body, status=202, on_sent=self._node.ask_to_leave)


class _CachedResponse:
    """Cached response that is expensive to compute; it is reused until it is too old."""

    def __init__(self, fresh_for: float, run_render: RunRender) -> None:
        self._fresh_for = fresh_for
        self._run_render = run_render
        self._lock = Lock()
        self._key: object = None
        self._made_at = -inf
        self._response: AdminResponse | None = None

    async def get(self, key: object, prepare: Callable[[], Render]) -> AdminResponse:
        """Return the cached response while it is fresh; otherwise compute a new one.

        `prepare` reads the state of the node. The function that it returns renders what was read,
        perhaps in another thread, and must not touch the node.
        """
        async with self._lock:
            is_old = runtime.current_time() - self._made_at >= self._fresh_for
            if self._response is None or key != self._key or is_old:
                self._response = await self._run_render(prepare())
                self._key, self._made_at = key, runtime.current_time()
            return self._response


def _no_decider(rule: Rule) -> HttpProblem:
    """Create the response for a key that no node decides."""
    who, advice = "no node that holds this key", "retry in a moment"
    if rule.scope == "home":
        who = f"no node of data center {rule.home!r}, the home of this rule,"
        advice = "start a node there, correct `home` of the rule, or retry in a moment"
    return HttpProblem(503, f"{who} answers", f"see /v1/members; {advice}")


def _query(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError as error:
        raise HttpProblem(
            400, f"the query must have at most {_MAX_QUERY_FIELDS} fields", "send fewer"
        ) from error


def _number(request: _RouteRequest, name: str, least: int, most: int) -> int | None:
    text = dict(request.query).get(name)
    if text is None:
        return None
    if not (text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise HttpProblem(
            400,
            f"{name} must be a number from {least} to {most}, got {text[:40]}",
            f"write {name}={least}",
        )
    return int(text)
