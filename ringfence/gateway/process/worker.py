"""One worker process: a client of the cluster, and both ports in front of it.

Decides what runs beside what, from start to stop. How many workers there are is `supervise`'s.
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
from ringfence.gateway.grpc.rls import RateLimitService, RlsSettings
from ringfence.gateway.grpc.server import GrpcServer
from ringfence.gateway.http.api import Api
from ringfence.gateway.http.connection_limits import HttpConnections
from ringfence.gateway.http.http_types import Problem
from ringfence.gateway.http.rsgi import HttpProtocol, HttpScope, serve_http
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.gateway.process.tokens import TokenReload, Tokens, load_tokens
from ringfence.http.headers import LimitHeaders

__all__ = ["Worker", "make_api", "make_rls", "require_rules", "warm_up"]

logger = logging.getLogger("ringfence.gateway")

_RETRY = 2.0
"""Seconds until a cluster that turned us away is tried again."""
_LOOK = 0.05
_LOOK_AT_CONNECTIONS = 0.5
_LOOK_AT_TOKENS = 1.0
_WARM_UP = 64
"""Looks at nothing, so that every owner is most likely asked for one of them."""


def make_rls(limiter: Limiter, settings: GatewaySettings) -> RateLimitService:
    """Envoy's service as the settings say."""
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


class Worker:
    """An RSGI application that brings its own client and gRPC server along."""

    def __init__(self, settings: GatewaySettings, main: int) -> None:
        """`main` is the number of the process that keeps the workers."""
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
        """Begin; granian calls it before it serves."""
        gc.collect()
        gc.freeze()  # What has been loaded stays; looking through it again costs milliseconds.
        self._task = loop.create_task(self._run())
        self._watching = loop.create_task(self._end_with_main())
        if self._settings.tokens:
            self._following = loop.create_task(self._follow_tokens(Path(self._settings.tokens)))
        if sys.platform == "linux":
            self._bounding = loop.create_task(self._bound_connections())

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        """End; granian calls it when it has stopped serving."""
        loop.run_until_complete(self._stop())

    async def __rsgi__(self, scope: HttpScope, protocol: HttpProtocol) -> None:
        """Answer one request."""
        if self._api is None:
            response = Problem(503, "the gateway is starting", [("retry-after", "1")]).response()
            headers = [*response.headers, ("content-type", response.content_type)]
            protocol.response_bytes(response.status, headers, response.body)
            return
        settings = self._settings
        await serve_http(self._api, scope, protocol, settings.max_body, settings.body_timeout)

    async def _end_with_main(self) -> None:
        """End when the main process was killed: nobody else stops us, and we have its ports."""
        while os.getppid() == self._main:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(_RETRY / 4)
        logger.error("the gateway's main process has gone; this worker ends, too")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(_RETRY)
        os._exit(1)

    async def _follow_tokens(self, path: Path) -> None:
        """Put changed tokens in force: what is revoked is refused from the next request on."""
        file = TokenReload(path, self._tokens)
        while True:
            file.reload_if_changed()
            await asyncio.sleep(_LOOK_AT_TOKENS)

    async def _bound_connections(self) -> None:
        """Hold the connections of the HTTP port to their bounds, and count what that takes."""
        connections = HttpConnections(self._settings)
        while True:
            await asyncio.sleep(_LOOK_AT_CONNECTIONS)
            try:
                counted = await asyncio.to_thread(connections.look)
            except Exception:
                logger.exception("a bug in Ringfence, met while looking at connections")
                continue
            if self._api is not None:
                for cause, count in counted.items():
                    self._api.counters[f"refused_{cause}"] += count

    async def _run(self) -> None:
        """Keep a client of the cluster, whatever the cluster does."""
        while True:
            try:
                await self._serve()
            except RingfenceError as error:
                logger.error("the gateway cannot serve, trying again: %s", error)
            except Exception:
                logger.exception("a bug in Ringfence; the gateway begins anew")
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
                    hedge_after=settings.patience,
                    deadline=settings.deadline,
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
                server = GrpcServer(rls, self._tokens, settings, at)
                await server.start()
                self._grpc = server
            self._is_ready = False
            self._api = Api(
                limiter, settings, self._tokens, rls, lambda: self._is_ready, cluster.hedging
            )
            await self._watch(cluster, limiter)

    async def _watch(self, cluster: Cluster, limiter: Limiter) -> None:
        """Say that we serve once the rules are known; they stay known, whoever is lost later."""
        while not cluster.knows_rules:
            if error := cluster.outage():
                raise error
            await asyncio.sleep(_LOOK)
        require_rules(limiter, self._settings)
        await warm_up(limiter)
        cluster.hedging.reset()  # These checks are of no caller: the metrics begin after them.
        self._is_ready = not self._is_stopping
        logger.info("the gateway knows %d rules and serves", len(cluster.rules.rules()))
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
    """Have the limiter report a `domain` or `auth` of the settings that no rule can match.

    Raises `ConfigError` then, when strict. Settings left at their defaults are not looked at: a
    gateway for Envoy alone needs no such rules.
    """
    default = GatewaySettings()
    if (settings.domain, settings.auth) == (default.domain, default.auth):
        return
    problems = limiter.expect(settings.domain, *settings.keys.paths)
    if problems and settings.strict:
        raise ConfigError("; ".join(problems))


async def warm_up(limiter: Limiter) -> None:
    """Connect to every owner, which is every standby, too, so that no check waits for it."""
    for number in range(_WARM_UP):
        await limiter.check_limit("1/second", "ringfence:warm-up", str(number), cost=0)


def make_api(limiter: Limiter, settings: GatewaySettings, tokens: Tokens | None = None) -> Api:
    """The HTTP API over any limiter."""
    return Api(limiter, settings, tokens or Tokens(), make_rls(limiter, settings), lambda: True)
