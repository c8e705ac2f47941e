"""Gateway process that runs beside one or several nodes and ends with them.

It shares no event loop with the limiter. It ends when its standard input closes, so it also ends
when the node is killed, and its ports become free.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from urllib.parse import quote

import trio
from msgspec.structs import replace

from node.config.access import KeyDir
from node.config.private_files import readable
from node.config.settings import NodeSettings
from node.supervisor.systemd import NOTIFY_SOCKET
from ringfence.client.url import ENVIRONMENT, parse_url
from ringfence.errors import ConfigError
from ringfence.settings.token_file import load_token_file
from ringfence.transport.listeners import Listener, require_distinct
from ringfence.wire import matches

__all__ = ["check_gateway", "cluster_url", "run_with_gateway"]

logger = logging.getLogger("ringfence.node")

_TOKENS = ("gateway", "app")
"""Tokens that the gateway may use, in order of preference."""
_WRONG_INPUT = 2
"""Exit status of a gateway with wrong settings or ports."""
_PAUSE = 1.0
_STOP_TIMEOUT = 15.0
"""Seconds in which a gateway may finish requests in flight."""


async def run_with_gateway(
    serve: Callable[..., Awaitable[None]],
    nodes: Sequence[NodeSettings],
    config: Path | None,
    operator_ports: Sequence[Listener] = (),
) -> None:
    """Run `serve`, and run a gateway process for that time.

    `nodes` are the nodes that `serve` starts and that the gateway uses. `config` is the gateway's
    settings file. `operator_ports` are the nodes' TCP ports, which the gateway must not use.
    `serve` gets the function `on_reload` and calls it after each reload of keys: then a gateway
    whose token has changed is restarted. Raises `ConfigError` for wrong settings, and when the
    gateway cannot start.
    """
    check_gateway(nodes, config, operator_ports)
    words = [sys.executable, "-m", "node.entry", "gateway", "--with-stdin"]
    words += ["--config", str(config)] if config is not None else []
    request_look, asked = trio.open_memory_channel[None](1)

    def on_reload() -> None:
        with suppress(trio.WouldBlock):  # One pending look is enough.
            request_look.send_nowait(None)

    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[object]) -> None:
            await serve(on_reload=on_reload, task_status=task_status)
            nursery.cancel_scope.cancel()

        await nursery.start(run)
        await _keep_running(words, nodes, asked)


def check_gateway(
    nodes: Sequence[NodeSettings], config: Path | None, operator_ports: Sequence[Listener]
) -> None:
    """Validate the settings of a gateway beside these nodes. Raises `ConfigError`."""
    from ringfence.gateway import load_gateway_settings

    gateway = load_gateway_settings(config, _environment(nodes))
    own = [replace(each, setting=f"the gateway's {each.setting}") for each in gateway.listeners]
    require_distinct([*operator_ports, *own])


def _environment(nodes: Sequence[NodeSettings]) -> dict[str, str]:
    """Return the environment of a gateway beside these nodes, with its token as it is now on disk.

    Raises `ConfigError`.
    """
    environment = {**os.environ, ENVIRONMENT: cluster_url(*nodes)}
    environment.pop(NOTIFY_SOCKET, None)  # The node notifies systemd.
    return environment


def cluster_url(settings: NodeSettings, *others: NodeSettings) -> str:
    """Return the address of the cluster for a client on this host.

    Raises `ConfigError` when the cluster has keys but this host has no token for the client.
    """
    place = ",".join([_place(each) for each in (settings, *others)])
    datacenter = f"datacenter={quote(settings.datacenter)}"
    if not settings.keys:
        return f"ringfence://{place}?{datacenter}"
    keys = KeyDir(Path(settings.keys))
    files = [keys.token(name) for name in _TOKENS]
    with readable(keys.path):
        token = next((file for file in files if file.is_file()), None)
        # The gateway reports a token with other characters as malformed.
        text = "" if token is None else token.read_text("ascii", errors="replace").strip()
    if token is None:
        raise ConfigError(
            f"--gateway needs a token: neither {files[0]} nor {files[1]} is there; make one with "
            f"`ringfence keys add-token {keys.path} gateway:check,reset`"
        )
    return f"ringfence://{text}@{place}?{datacenter}&ca={quote(str(keys.ca))}"


def _place(settings: NodeSettings) -> str:
    host, port = settings.listen_at
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"[{host}]:{port}" if _is_ipv6(host) else f"{host}:{port}"


async def _keep_running(
    words: list[str], nodes: Sequence[NodeSettings], asked: trio.MemoryReceiveChannel[None]
) -> None:
    """Start the gateway, and restart it whenever it ends, or when its token has changed at a
    reload. Raises `ConfigError` for invalid settings."""
    for attempt in count():
        try:
            # Not reused for the next start, because its token may be replaced while the node runs.
            environment = _environment(nodes)
        except ConfigError as error:
            if attempt == 0:
                raise
            logger.error("the gateway is not started: %s", error)
        else:
            status = await _run_once(words, environment, nodes, asked)
            if status is None:
                logger.info("the token of the gateway has changed, so it is started again")
                continue
            if status == _WRONG_INPUT and attempt == 0:
                raise ConfigError("the gateway cannot start; its log above says why")
            logger.error("the gateway has ended with status %d and is started again", status)
        await trio.sleep(_PAUSE)


async def _run_once(
    words: list[str],
    environment: dict[str, str],
    nodes: Sequence[NodeSettings],
    asked: trio.MemoryReceiveChannel[None],
) -> int | None:
    """Run the process of the gateway until it ends, and return its exit status.

    Stop it and return None when its token has changed at a reload, which `asked` reports.
    """
    process = await trio.lowlevel.open_process(words, stdin=subprocess.PIPE, env=environment)
    try:
        async with trio.open_nursery() as nursery:

            async def look_at_reloads() -> None:
                async for _ in asked:
                    if _has_another_token(environment, nodes):
                        nursery.cancel_scope.cancel()

            nursery.start_soon(look_at_reloads)
            status = await process.wait()
            nursery.cancel_scope.cancel()
            return status
    finally:
        with trio.move_on_after(_STOP_TIMEOUT, shield=True):
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if process.returncode is None:
            process.kill()
    return None


def _has_another_token(environment: dict[str, str], nodes: Sequence[NodeSettings]) -> bool:
    """Return whether the token on disk differs from that of a running gateway, and the nodes' token
    file has it. Otherwise an incompletely copied file would stop a gateway that works."""
    try:
        url = cluster_url(*nodes)
        if url == environment[ENVIRONMENT]:
            return False
        token, keys = parse_url(url).token, KeyDir(Path(nodes[0].keys or ""))
        known = None if token is None else load_token_file(keys.tokens).get(token.name)
        if token is None or known is None or not matches(token.secret, known.digest):
            raise ConfigError(
                f"{keys.tokens}: lacks the token of the gateway; copy the token file and "
                "tokens.toml of one change, then send SIGHUP again"
            )
    except ConfigError as error:
        logger.error("the gateway is not started again: %s", error)
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False
