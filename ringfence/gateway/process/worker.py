"""Gateway worker process: a client of the cluster that serves the HTTP and the gRPC port.

Starts and stops the tasks of the worker. `supervisor` decides the number of workers.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from ringfence.client.cluster.cluster import Cluster
from ringfence.client.connect import open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.requests.unmatched_checks import UnmatchedChecks
from ringfence.client.url import parse_url
from ringfence.errors import ConfigError, RingfenceError
from ringfence.gateway.grpc.quick_checks import CheckStarter, QuickChecks
from ringfence.gateway.grpc.rls import RateLimitService, RlsSettings
from ringfence.gateway.grpc.server import GrpcServer
from ringfence.gateway.http.api import Api
from ringfence.gateway.http.connection_limits import HttpConnections
from ringfence.gateway.http.http_types import HttpProblem
from ringfence.gateway.http.rsgi import HttpProtocol, HttpScope, serve_http
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.gateway.process.tokens import TokenReload, Tokens, load_tokens
from ringfence.http.headers import HeaderStyle, LimitHeaders

__all__ = [
    "Worker",
    "make_api",
    "make_quick",
    "make_rls",
    "frame_interval",
    "require_rules",
    "warm_up",
]

logger = logging.getLogger("ringfence.gateway")

_RETRY = 2.0
"""Seconds until a retry after the cluster refused this gateway."""
_POLL_INTERVAL = 0.05
_CONNECTION_CHECK_INTERVAL = 0.5
_TOKEN_CHECK_INTERVAL = 1.0
_FRAME_INTERVAL, _SHARE_OF_DEADLINE = 0.003, 1 / 20
"""Minimum seconds between two frames to a node, and their maximum share of the deadline."""
_WARM_UP = 64
"""Number of peeks in the warm-up, enough to reach every owner with high probability."""


def make_rls(limiter: Limiter, settings: GatewaySettings) -> RateLimitService:
    """Create Envoy's rate limit service from the settings."""
    return RateLimitService(
        limiter,
        LimitHeaders(settings.grpc_headers),
        RlsSettings(
            deadline=settings.deadline,
            shadow=settings.shadow,
            quota=settings.quota,
            dynamic_metadata=settings.dynamic_metadata,
            override_algorithm=settings.override_algorithm,
            charge_hits_addend=settings.charge_hits_addend,
        ),
    )


def make_quick(
    service: RateLimitService, settings: GatewaySettings, cluster: CheckStarter
) -> QuickChecks | None:
    """Create the quick path of plain requests; None if the settings add more to each response."""
    if settings.quota or settings.dynamic_metadata or settings.grpc_headers != HeaderStyle.NONE:
        return None
    return QuickChecks(service, cluster, settings.deadline)


def frame_interval(deadline: float) -> float:
    """Return the time for which checks of all connections gather for one frame to a node."""
    return min(_FRAME_INTERVAL, deadline * _SHARE_OF_DEADLINE)


class Worker:
    """Gateway worker: the application that Granian serves (RSGI), a client of the cluster, a
    gRPC server."""

    def __init__(self, settings: GatewaySettings, main: int) -> None:
        """`main` is the process ID of the gateway's main process."""
        self._settings = settings
        self._main = main
        self._watching: asyncio.Task[None] | None = None
        self._bounding: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._tokens: Tokens = load_tokens(
            Path(settings.tokens) if settings.tokens else None,
            asks_certificates=bool(settings.tls_client_ca),
        )
        self._api: Api | None = None
        self._grpc: GrpcServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_ready = False
        self._is_stopping = False

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the worker. Granian calls this before it serves requests."""
        gc.collect()
        gc.freeze()  # Each later collection would cost milliseconds more.
        self._task = loop.create_task(self._run())
        self._watching = loop.create_task(self._stop_with_main())
        if self._settings.tokens:
            self._following = loop.create_task(self._reload_tokens(Path(self._settings.tokens)))
        if sys.platform == "linux":
            self._bounding = loop.create_task(self._limit_connections())

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the worker. Granian calls this after it has stopped serving."""
        loop.run_until_complete(self._stop())

    async def __rsgi__(self, scope: HttpScope, protocol: HttpProtocol) -> None:
        """Answer one HTTP request that the server Granian has received."""
        if self._api is None:
            response = HttpProblem(
                503, "the gateway is starting", [("retry-after", "1")]
            ).response()
            headers = [*response.headers, ("content-type", response.content_type)]
            protocol.response_bytes(response.status, headers, response.body)
            return
        settings = self._settings
        await serve_http(self._api, scope, protocol, settings.max_body, settings.body_timeout)

    async def _stop_with_main(self) -> None:
        """End this worker if the main process was killed.

        Otherwise the worker would keep the ports open.
        """
        while os.getppid() == self._main:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_RETRY / 4)
        logger.error("the main process of the gateway has ended; this worker ends too")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(_RETRY)
        os._exit(1)

    async def _reload_tokens(self, path: Path) -> None:
        """Apply changes of the token file, so that a revoked token is refused from the next request
        on."""
        file = TokenReload(path, self._tokens)
        while True:
            file.reload_if_changed()
            await asyncio.sleep(_TOKEN_CHECK_INTERVAL)

    async def _limit_connections(self) -> None:
        """Enforce the connection limits of the HTTP port, and count the connections that it
        closes."""
        connections = HttpConnections(self._settings)
        while True:
            await asyncio.sleep(_CONNECTION_CHECK_INTERVAL)
            try:
                counted = await asyncio.to_thread(connections.close_excess)
            except Exception:
                logger.exception("internal error in the check of connections")
                continue
            if self._api is not None:
                for cause, count in counted.items():
                    self._api.counters[f"refused_{cause}"] += count

    async def _run(self) -> None:
        """Run a client of the cluster, and restart it after each failure."""
        while True:
            try:
                await self._serve()
            except RingfenceError as error:
                logger.error("the gateway cannot serve, retrying: error=%s", error)
            except Exception:
                logger.exception("internal error in the gateway; it restarts its client")
            await asyncio.sleep(_RETRY)

    async def _serve(self) -> None:
        settings = self._settings
        url = parse_url(settings.cluster)
        async with AsyncExitStack() as stack:
            unmatched = UnmatchedChecks(strict=settings.strict)
            cluster = await stack.enter_async_context(
                open_cluster(
                    url,
                    connect_timeout=0.0,
                    hedge_after=settings.hedge_after,
                    deadline=settings.deadline,
                    frame_interval=frame_interval(settings.deadline),
                    on_rules=unmatched.verify,
                )
            )
            limiter = Limiter(cluster, local_cache=cluster.local_cache, unmatched=unmatched)
            rls = make_rls(limiter, settings)
            if self._grpc is not None:
                await self._grpc.stop()
            self._grpc = None
            at = settings.grpc_at
            if at is not None:
                quick = make_quick(rls, settings, cluster)
                server = GrpcServer(rls, self._tokens, settings, at, quick)
                await server.start()
                self._grpc = server
            self._is_ready = False
            self._api = Api(
                limiter, settings, self._tokens, rls, lambda: self._is_ready, cluster.router.hedging
            )
            await self._watch(cluster, limiter)

    async def _watch(self, cluster: Cluster, limiter: Limiter) -> None:
        """Report this worker as ready when the rules have arrived and the nodes are connected.

        It stays ready if nodes fail later.
        """
        while not cluster.knows_rules:
            if error := cluster.outage():
                raise error
            await asyncio.sleep(_POLL_INTERVAL)
        require_rules(limiter, self._settings)
        await warm_up(limiter)
        cluster.router.hedging.reset()  # Warm-up checks belong to no client.
        self._is_ready = not self._is_stopping
        logger.info("gateway ready: rules=%d", len(cluster.rules.rules()))
        if self._grpc is not None:
            await self._grpc.set_ready()
        await asyncio.Event().wait()

    async def _stop(self) -> None:
        self._is_stopping = True
        self._is_ready = False
        if self._grpc is not None:
            await self._grpc.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def require_rules(limiter: Limiter, settings: GatewaySettings) -> None:
    """Make sure that the limiter reports a `domain` or `auth` setting that no rule can match.

    Raises `ConfigError` in this case if `strict` is set. Settings with default values are not
    checked, because a gateway for Envoy alone needs no such rules.
    """
    default = GatewaySettings()
    if (settings.domain, settings.auth) == (default.domain, default.auth):
        return
    problems = limiter.expect(settings.domain, *settings.keys.paths)
    if problems and settings.strict:
        raise ConfigError("; ".join(problems))


async def warm_up(limiter: Limiter) -> None:
    """Connect to all nodes that own keys, before the first check of a client.

    Peeks at sample keys reach every owner with high probability.
    """
    for number in range(_WARM_UP):
        await limiter.check_limit("1/second", "ringfence:warm-up", str(number), cost=0)


def make_api(limiter: Limiter, settings: GatewaySettings, tokens: Tokens | None = None) -> Api:
    """Create the HTTP API of the gateway for a limiter."""
    return Api(limiter, settings, tokens or Tokens(), make_rls(limiter, settings), lambda: True)
