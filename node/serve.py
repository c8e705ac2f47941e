"""The process of a node: keys, rules, socket and signals."""

import ctypes
import gc
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import SystemRandom
from time import thread_time_ns
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from node.config.access import Access, KeyDir, load_access, reload_access
from node.config.certificate_expiry import Expiry, expiries, log_expiries, warn_daily
from node.config.certificates import expiry_of, load_node_tls
from node.config.discovery import Discovery
from node.config.key_changes import changes_between
from node.config.settings import NodeSettings
from node.metrics.eviction_log import EvictionLog, watch_evictions
from node.node import Node
from node.supervisor.systemd import notify_systemd
from ringfence.errors import ConfigError
from ringfence.peering.clock import SystemClock
from ringfence.rules import RuleSet
from ringfence.transport.settings import Settings as TransportSettings
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.transport.tls.certificates import ClientTls, ServerTls
from ringfence.transport.udp.udp_trio import TrioUdp

if TYPE_CHECKING:
    from node.admin import AdminPort  # A node without the admin port does not import its libraries.
    from node.config.rules_reload import RuleFiles

__all__ = ["Files", "read_files", "serve"]

logger = logging.getLogger("ringfence.node")

_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 512 << 10
"""Option of glibc's `mallopt`: bytes from which a block is mapped by itself; and its value."""


async def serve(
    settings: NodeSettings,
    *,
    on_reload: Callable[[], None] | None = None,
    task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node until SIGTERM, SIGINT or a leave request; SIGHUP reloads keys and rules.

    `on_reload` is called after each reload of valid keys. Raises `ConfigError` for invalid keys,
    rules or addresses.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        files = read_files(settings)
        keys, access, rulebook, rules = files.keys, files.access, files.rulebook, files.rules
        client_tls, server_tls = files.client_tls, files.server_tls
        random = SystemRandom()  # Session ids and lease ids must not be guessed.
        node = Node(
            *(settings, access, rules),
            clock=SystemClock(),
            random=random,
            stopwatch=thread_time_ns,
        )
        if keys is not None:
            node.certificates_expire = expiry_of(client_tls, server_tls)
        transport = TrioUdp(
            settings.listen_at,
            on_bug=partial(node.containment.failed, "transport"),
            client=client_tls,
            server=server_tls,
            settings=_transport_settings(settings),
            reset_secret=access.reset_secret(settings.name),
            accept=node.accept,
        )
        resolve = Discovery(settings.join).resolve if settings.join else None
        _tune_garbage_collector()
        _return_large_blocks()
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run)
            port = await _open_http(node, settings, keys)
            logger.info(
                "node %s listens on %s:%d, %d rules, %s, %s",
                settings.name,
                *transport.address[:2],
                len(rules.rules()),
                "keys from " + settings.keys if keys else "no keys: loopback only",
                "operators look at " + port.url if port else "no admin port",
            )
            if settings.join and not rules.rules():
                logger.warning(
                    "node %s joins other nodes without rules, so clients that connect to it are "
                    "not limited: start every node with the same --rules",
                    settings.name,
                )
            if port is not None:
                nursery.start_soon(port.run)
            request_reload, asked = trio.open_memory_channel[None](1)
            read_keys = None
            if keys is not None:
                reload = _KeyReload(node, transport, port, keys, (access, client_tls, server_tls))
                read_keys = partial(_reload_keys, reload, on_reload)
                reload.log_expiries()
                nursery.start_soon(
                    node.containment.supervise, "expiry", warn_daily, reload.expiries, _now
                )
            evictions = EvictionLog(settings.name, settings.max_keys, settings.max_bytes)
            watch = partial(watch_evictions, evictions, lambda: node.shards.engine.evicted)
            nursery.start_soon(node.containment.supervise, "evictions", watch)
            nursery.start_soon(_handle_signals, signals, node, read_keys, request_reload)
            if rulebook is not None:
                interval = settings.reload_interval
                nursery.start_soon(
                    node.containment.supervise, "reload", _follow, rulebook, node, interval, asked
                )
            await nursery.start(node.run, transport, resolve)
            task_status.started(node)
            notify_systemd("READY=1")
            await node.asked_to_leave.wait()
            notify_systemd("STOPPING=1")
            logger.info("node %s hands over and leaves", settings.name)
            await node.leave()
            nursery.cancel_scope.cancel()
    logger.info("node %s has stopped", settings.name)


class Files(Struct, frozen=True):
    """Contents of the files that a node reads before it starts."""

    keys: KeyDir | None
    access: Access
    rulebook: "RuleFiles | None"
    rules: RuleSet
    client_tls: ClientTls
    server_tls: ServerTls


def read_files(settings: NodeSettings) -> Files:
    """Read rules, keys and certificates. Raises `ConfigError` with the problems of the keys and of
    the rules."""
    keys = KeyDir(Path(settings.keys)) if settings.keys else None
    rulebook = _rule_files(settings) if settings.rules else None
    try:
        access, tls = load_access(keys, settings.cluster), _tls_of(keys, settings.name)
    except ConfigError as of_keys:
        try:
            _load(rulebook)
        except ConfigError as of_rules:
            raise ConfigError(f"{of_keys}\n{of_rules}") from of_rules
        raise
    return Files(keys, access, rulebook, _load(rulebook), *tls)


def _load(rulebook: "RuleFiles | None") -> RuleSet:
    return RuleSet() if rulebook is None else rulebook.load()


def _rule_files(settings: NodeSettings) -> "RuleFiles":
    # A node without rule files starts faster without the parser of YAML.
    from node.config.rules_reload import RuleFiles

    return RuleFiles(Path(settings.rules), settings.default_algorithm, merge=settings.merge_domains)


async def _open_http(node: Node, settings: NodeSettings, keys: KeyDir | None) -> "AdminPort | None":
    """Open the admin port, if configured."""
    if settings.http_at is None:
        return None
    from node.admin import open_port

    return await open_port(node, settings.http_at, keys)


def _tune_garbage_collector() -> None:
    """Make Python's garbage collector run rarely, because checks create few cycles.

    Objects that exist now are excluded from collection. This takes a tenth of a second or more, so
    it runs before the node serves requests.
    """
    gc.collect()
    gc.freeze()
    # Checks wait for a collection. Of 1000 new objects, it took up to 1 ms while shards moved.
    gc.set_threshold(500, 2_000, 50)


def _return_large_blocks() -> None:
    """Make the C library (glibc) return freed blocks of 512 KiB and more to the system immediately.

    By default it keeps blocks of up to 32 MiB after the first one was freed. Then buffers for slow
    readers took up to four times their size.
    """
    with suppress(OSError, AttributeError):  # Other C libraries have no `mallopt`.
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


async def _handle_signals(
    signals: AsyncIterator[int],
    node: Node,
    read_keys: Callable[[], None] | None,
    request_reload: trio.MemorySendChannel[None],
) -> None:
    """Handle signals: SIGHUP reloads keys and rules, any other signal makes the node leave."""
    async for number in signals:
        if number != signal.SIGHUP:
            node.asked_to_leave.set()
            continue
        with suppress(trio.WouldBlock):  # One pending reload is enough.
            request_reload.send_nowait(None)
        if read_keys is not None:
            node.containment.call("reload", read_keys)


class _KeyReload:
    """Current keys and certificates, and their replacement at a SIGHUP."""

    def __init__(
        self,
        node: Node,
        transport: TrioUdp,
        port: "AdminPort | None",
        keys: KeyDir,
        in_force: tuple[Access, ClientTls, ServerTls],
    ) -> None:
        self._node = node
        self._transport = transport
        self._port = port
        self._keys = keys
        self._in_force = in_force
        self._expiries = expiries(keys, node.name, *in_force[1:])

    def reload_keys(self) -> bool:
        """Load and apply all key and certificate files, or none if one is invalid; log the
        changes. Return whether they are valid."""
        try:
            access = reload_access(self._keys, self._in_force[0])
            client_tls, server_tls = _tls_of(self._keys, self._node.name)
            if self._port is not None:
                self._port.reload_certificate()
            known = expiries(self._keys, self._node.name, client_tls, server_tls)
        except ConfigError as error:
            logger.error("keys not reloaded, the old ones stay in force: %s", error)
            return False
        before, self._in_force = self._in_force, (access, client_tls, server_tls)
        self._expiries = known
        self._transport.change_tls(client_tls, server_tls)
        self._node.certificates_expire = expiry_of(client_tls, server_tls)
        ended = self._node.change_access(access)
        changes = changes_between(before, self._in_force)
        if ended:
            changes.append(f"connections ended: {ended}")
        logger.info("keys and certificates reloaded; %s", "; ".join(changes) or "nothing changed")
        if before[1:] != self._in_force[1:]:
            self.log_expiries()
        return True

    def expiries(self) -> list[Expiry]:
        """Return when the loaded certificates expire."""
        return self._expiries

    def log_expiries(self) -> None:
        """Log when the loaded certificates expire."""
        log_expiries(self._expiries, _now())


def _reload_keys(reload: _KeyReload, on_reload: Callable[[], None] | None) -> None:
    if reload.reload_keys() and on_reload is not None:
        on_reload()


async def _follow(
    rulebook: "RuleFiles", node: Node, interval: float, asked: trio.MemoryReceiveChannel[None]
) -> None:
    """Load and apply the rule files when they change or at a request; look for changes every
    `interval` seconds.

    A thread reads the files, because large files take seconds while checks continue. Another
    thread looks for changes, so that an idle node does not wake for it.
    """
    while True:
        await _wait_for_reload(rulebook, interval, asked)
        before = rulebook.refusals
        rules = await trio.to_thread.run_sync(rulebook.reload, abandon_on_cancel=True)
        node.counters.add("reloads_refused", rulebook.refusals - before)
        node.rules.refusal = rulebook.refusal
        if rules is None:
            continue
        if node.change_rules(rules):
            current = node.rules.current
            logger.info(
                "rules of version %d in force, %d in all", current.version, len(current.rules())
            )
        else:
            logger.info("rules reloaded; nothing changed")


async def _wait_for_reload(
    rulebook: "RuleFiles", interval: float, asked: trio.MemoryReceiveChannel[None]
) -> None:
    """Wait until the rule files have changed or a reload is requested."""
    ended = threading.Lock()  # Waiting for an event costs several times as much processor time.
    ended.acquire()
    async with trio.open_nursery() as nursery:

        async def wait_for_change() -> None:
            await trio.to_thread.run_sync(
                rulebook.wait_for_change,
                partial(ended.acquire, timeout=interval),
                abandon_on_cancel=True,
            )
            nursery.cancel_scope.cancel()

        if interval:
            nursery.start_soon(wait_for_change)
        try:
            await asked.receive()
            nursery.cancel_scope.cancel()
        finally:
            ended.release()


def _transport_settings(settings: NodeSettings) -> TransportSettings:
    usual = TransportSettings()
    most = settings.max_connections
    return TransportSettings(
        max_connections=most,
        max_half_open=min(usual.max_half_open, most),
        retry_above=min(usual.retry_above, most),
        use_fast_path=settings.use_fast_path,
    )


def _tls_of(keys: KeyDir | None, name: str) -> tuple[ClientTls, ServerTls]:
    if keys is None:
        return ClientTls(verify=False), self_signed(_now())
    return load_node_tls(keys, name, _now())


def _now() -> datetime:
    return datetime.now(UTC)
