"""Main process of the gateway: checks of settings and ports, then supervision of the workers.

Granian starts the workers, replaces a worker that dies, and stops all workers at SIGTERM.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from granian.constants import HTTPModes, Interfaces, Loops
from granian.errors import FatalError
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels
from granian.server import Server

from ringfence.client.connect import open_cluster
from ringfence.client.url import parse_url
from ringfence.errors import ConfigError
from ringfence.gateway.process.settings import GatewaySettings, validate_tls
from ringfence.gateway.process.tokens import load_tokens
from ringfence.transport.addresses import listen_error
from ringfence.transport.interface import Address

__all__ = ["reload_if_valid", "run_gateway"]

logger = logging.getLogger("ringfence.gateway")

_LARGEST_HEADERS = 65_536
"""Maximum header size, above that of proxies: nginx lets a request pass if it is refused here."""
_BACKLOG = 1024
_DESCRIPTORS = 256
"""File descriptors of a worker besides the connections of both ports."""
_LOGGING = {"incremental": True, "handlers": {}, "loggers": {"_granian": {"propagate": True}}}
"""Logging settings with which Granian uses the log of the gateway."""


def run_gateway(settings: GatewaySettings, *, tied_to_stdin: bool = False) -> None:
    """Serve requests until SIGTERM or SIGINT; with `tied_to_stdin` also until standard input ends.

    Raises `ConfigError` and `AccessDenied` for errors that a retry cannot fix. If the cluster does
    not answer yet, the workers wait for it.
    """
    load_tokens(Path(settings.tokens) if settings.tokens else None)
    settings = _within_descriptors(settings)
    for at in (settings.listen_at, settings.grpc_at):
        if at is not None:
            _require_free(at)
    asyncio.run(_check_cluster(settings))
    if tied_to_stdin:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    host, port = settings.listen_at
    server = Server(
        "ringfence.gateway",
        address=host,
        port=port,
        interface=Interfaces.RSGI,
        workers=settings.workers,
        loop=Loops.uvloop,
        http=HTTPModes.auto,
        websockets=False,
        http1_settings=HTTP1Settings(
            header_read_timeout=round(settings.header_timeout * 1000),
            max_buffer_size=_LARGEST_HEADERS,
        ),
        # No pings: their responses would make an idle connection look active.
        http2_settings=HTTP2Settings(max_headers_size=_LARGEST_HEADERS),
        backlog=_BACKLOG,
        backpressure=settings.max_connections,
        log_level=LogLevels.warning,
        log_dictconfig=_LOGGING,
        ssl_cert=Path(settings.tls_cert) if settings.tls_cert else None,
        ssl_key=Path(settings.tls_key) if settings.tls_key else None,
        ssl_ca=Path(settings.tls_client_ca) if settings.tls_client_ca else None,
        ssl_client_verify=bool(settings.tls_client_ca),
        respawn_failed_workers=True,
        respawn_interval=0.5,
        workers_kill_timeout=10,
    )
    server.signal_handler_reload = partial(  # type: ignore[method-assign]
        reload_if_valid, server.signal_handler_reload, settings
    )
    grpc = f"for gRPC on {settings.grpc}" if settings.grpc else "not for gRPC"
    logger.info("the gateway listens on %s, and %s", settings.listen, grpc)
    _end_forks_by_sigterm()
    try:
        server.serve(target_loader=partial(_make_worker, settings, os.getpid()), wrap_loader=False)
    except FatalError as error:
        raise ConfigError(f"the gateway cannot serve HTTP on {settings.listen}: {error}") from error


def reload_if_valid(
    reload: Callable[..., None], settings: GatewaySettings, *signal_and_frame: object
) -> None:
    """Let the workers read the TLS files again at SIGHUP, unless one is wrong."""
    try:
        validate_tls(settings)
    except ConfigError as error:
        logger.error("TLS files not reloaded, the old ones stay in force: %s", error)
    else:
        reload(*signal_and_frame)


def _make_worker(settings: GatewaySettings, main: int) -> Any:
    """Create the application in the worker process, because gRPC must not be loaded before a fork.

    Granian accepts any object with `__rsgi__`, although its type hints permit functions only.
    """
    from ringfence.gateway.process.worker import Worker

    return Worker(settings, main)


def _end_forks_by_sigterm() -> None:
    """Let SIGTERM end each worker that is forked from now on, until Granian sets its handlers
    there.

    The inherited handler would ignore the signal, and a signal that arrives during the fork would
    be lost. Granian would then wait for the worker in vain, and kill it.
    """
    signals = {signal.SIGTERM}

    def end_by_signal() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signals),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals),
        after_in_child=end_by_signal,
    )


def _within_descriptors(settings: GatewaySettings) -> GatewaySettings:
    """Raise the limit on file descriptors as needed, or reduce `max_connections` to fit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    needed = 2 * settings.max_connections + _DESCRIPTORS
    if soft == unlimited or soft >= needed:
        return settings
    limit = needed if hard == unlimited else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == needed:
        return settings
    most = max(1, (limit - _DESCRIPTORS) // 2)
    logger.warning(
        "max_connections is lowered from %d to %d: the process may have %d descriptors only",
        *(settings.max_connections, most, limit),
    )
    return msgspec.structs.replace(settings, max_connections=most)


async def _check_cluster(settings: GatewaySettings) -> None:
    """Connect once to the cluster, to detect permanent errors early: address, certificates,
    token."""
    async with open_cluster(parse_url(settings.cluster), connect_timeout=1.0) as cluster:
        if not cluster.knows_rules:
            logger.warning("no member of the cluster answers yet; the gateway retries")


def _require_free(at: Address) -> None:
    """Raise `ConfigError` if a port is in use.

    Without this check, the workers' sockets could share the port with another program.
    """
    family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(at)
        except OSError as error:
            raise ConfigError(listen_error(at, error, "TCP")) from error


def _stop_with_stdin() -> None:
    """Stop the gateway when standard input ends, which shows that the parent process has ended."""
    # Not sys.stdin: a worker forked during the read would block on its lock forever.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
