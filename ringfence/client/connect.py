"""Creation of limiters: over a cluster, or in this process only."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from math import inf
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, TypeAlias

import anyio
from msgspec.structs import replace

from ringfence import runtime
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.cluster.settings import ClusterSettings
from ringfence.client.limiter import Limiter
from ringfence.client.limiter_context import limiter_context
from ringfence.client.local_decider import LocalDecider
from ringfence.client.requests.descriptors import checked_seconds
from ringfence.client.requests.unmatched_checks import UnmatchedChecks
from ringfence.client.url import ENVIRONMENT, ClusterUrl, parse_url
from ringfence.errors import AccessDenied, ConfigError
from ringfence.peering.clock import Clock, SystemClock
from ringfence.peering.internal_errors import InternalErrors
from ringfence.peering.link import LinkSettings
from ringfence.rules import RuleSet
from ringfence.transport.tls.certificates import NODE_NAME, ClientTls, load_client_tls
from ringfence.wire import Hello, Role

if TYPE_CHECKING:
    from ringfence.transport.udp.udp_asyncio import AsyncioUdp
    from ringfence.transport.udp.udp_caller_loop import CallerLoopUdp
    from ringfence.transport.udp.udp_trio import TrioUdp

__all__ = [
    "RulesSource",
    "client_hello",
    "connect",
    "connected",
    "links_of",
    "local",
    "open_cluster",
    "rules_of",
    "tls_of",
    "verify_address",
]

logger = logging.getLogger("ringfence.client")


_Sources: TypeAlias = RuleSet | Mapping[str, object] | str | Path
if TYPE_CHECKING:
    from typing_extensions import TypeAliasType

    RulesSource = TypeAliasType("RulesSource", _Sources)  # Editors show the short name.
else:
    RulesSource = _Sources
"""Rules as a rule file or directory, the same as a mapping, or a `RuleSet`."""


@limiter_context
@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    rules: RulesSource | None = None,
    connect_timeout: float = 5.0,
    raise_on_outage: bool = False,
    strict: bool = False,
    denial_cache_size: int = 65_536,
    use_leases: bool = True,
) -> AsyncIterator[Limiter]:
    """Connect to a cluster: `async with ringfence.connect(URL) as limiter`. On trio and asyncio.

    Raises `ConfigError` for a wrong address or data center, `UntrustedPeer` for certificates that
    the CA did not sign, and `AccessDenied` for a token that the nodes reject.

    Args:
        url: `ringfence://TOKEN@HOST:PORT,HOST:PORT?ca=FILE`; None takes it from the environment
            variable `RINGFENCE_URL`.
        rules: Rules that replace those of the cluster for this client: a file or directory, a
            mapping or a `RuleSet`. The nodes need not know them, since each check carries its
            limit.
        connect_timeout: Seconds to wait for the first node. After that the block begins all the
            same, and every check is allowed until a node answers.
        raise_on_outage: Raise `PeerUnavailable` when no node answers, here and in checks, except
            in checks of rules with `on_failure: local`.
        strict: Raise `ConfigError` for a check that no rule can match, such as one with a misspelt
            domain. Otherwise it is a warning in the log.
        denial_cache_size: Number of denials that are cached. A cached key is denied in this process
            until its `retry_after` has passed. 0 asks a node for each check.
        use_leases: Borrow units of keys that are checked often, and spend them in this process.
    """
    async with connected(
        url,
        rules=rules,
        connect_timeout=connect_timeout,
        raise_on_outage=raise_on_outage,
        must_answer=raise_on_outage,
        strict=strict,
        denial_cache_size=denial_cache_size,
        use_leases=use_leases,
    ) as limiter:
        yield limiter


@asynccontextmanager
async def connected(
    url: str | None,
    *,
    rules: RulesSource | None,
    connect_timeout: float,
    raise_on_outage: bool,
    must_answer: bool,
    strict: bool,
    denial_cache_size: int,
    use_leases: bool,
) -> AsyncIterator[Limiter]:
    """Connect as `connect` does. Only with `must_answer`, it raises `PeerUnavailable` here when no
    node has answered after `connect_timeout`."""
    unmatched = UnmatchedChecks(strict=strict)
    async with open_cluster(
        _parsed_address(url),
        raise_on_outage=must_answer,
        rules=None if rules is None else rules_of(rules),
        connect_timeout=connect_timeout,
        denial_cache_size=denial_cache_size,
        use_leases=use_leases,
        on_rules=unmatched.verify,
    ) as cluster:
        limiter = Limiter(
            cluster,
            raise_on_outage=raise_on_outage,
            local_cache=cluster.local_cache,
            unmatched=unmatched,
        )
        try:
            yield limiter
        finally:
            await limiter.aclose()


@asynccontextmanager
async def _in_one_task() -> AsyncIterator[Callable[[], bool]]:
    """Raise `ConfigError` if another task leaves the block than has entered it.

    Gives the block a function that returns whether the calling task is still the same.
    """
    opener = _current_task()

    def is_same() -> bool:
        return _current_task() == opener

    try:
        yield is_same
    except RuntimeError as error:
        if is_same():
            raise
        raise ConfigError(
            "ringfence.connect(...) must be closed in the task that opened it, got another task; "
            "write `async with` in one function, or use ringfence.blocking.connect. The async "
            "fixtures of pytest-asyncio may run in two tasks"
        ) from error


def _current_task() -> object:
    """Return what identifies the running task on trio and asyncio; None on other runtimes."""
    return anyio.get_current_task().id if runtime.current_runtime() is None else None


def _parsed_address(url: str | None) -> ClusterUrl:
    """Parse the address of a cluster; None takes it from the environment. Raises `ConfigError`."""
    address = os.environ.get(ENVIRONMENT) if url is None else url
    if not address:
        raise ConfigError(
            f"no cluster address: give one, or set {ENVIRONMENT} to "
            "ringfence://TOKEN@HOST:PORT?ca=FILE"
        )
    return parse_url(address)


def verify_address(url: str | None) -> None:
    """Raise `ConfigError` now for an address with which `connect` would fail at the first call."""
    tls_of(_parsed_address(url))


def _ignore_rules(rules: RuleSet) -> None:
    """Do nothing with new rules, because the caller gave no `on_rules` callback."""


@asynccontextmanager
async def open_cluster(
    url: ClusterUrl,
    *,
    raise_on_outage: bool = False,
    rules: RuleSet | None = None,
    ask_owners: bool = True,
    connect_timeout: float = 5.0,
    denial_cache_size: int = 65_536,
    use_leases: bool = True,
    hedge_after: float | None = None,
    deadline: float | None = None,
    frame_interval: float = 0.0,
    on_rules: Callable[[RuleSet], None] = _ignore_rules,
) -> AsyncIterator[Cluster]:
    """Connect as `connect` does; for tools that also need members and counters.

    After `hedge_after` seconds without an answer of the owner, the check is also sent to the
    standby if the hedging budget allows. Nodes receive the time that remains of `deadline` seconds.
    `frame_interval` is that of `LinkSettings`. `on_rules` receives the rules of the cluster at each
    change.
    """
    checked_seconds("connect_timeout", connect_timeout)
    if type(denial_cache_size) is not int or denial_cache_size < 0:
        raise ConfigError(
            f"denial_cache_size must be 0 or more, got {denial_cache_size!r}; give a number of keys"
        )
    tls = tls_of(url)
    settings = ClusterSettings(
        datacenter=url.datacenter,
        on_failure=url.on_failure,
        link=links_of(url, deadline, frame_interval),
        ask_owners=ask_owners,
        denial_cache_size=denial_cache_size,
        use_leases=bool(use_leases),
        hedge_after=hedge_after,
    )
    failure: BaseException | None = None
    scopes: list[runtime.CancelScope] = []

    async def keep(
        run: Callable[..., Awaitable[object]], *, task_status: runtime.TaskStatus[object]
    ) -> None:
        """Run a task of the connection in a scope that can outlive a cancellation of the caller."""
        with runtime.move_on_after(inf) as scope:
            scopes.append(scope)
            await run(task_status=task_status)

    async with _in_one_task() as is_same_task, runtime.open_task_group() as tasks:
        try:
            transport = _new_transport(tls)
            await tasks.start(keep, transport.run)
            cluster = Cluster(
                *(transport, url.seeds, client_hello(url), settings),
                *(SystemClock(), SystemRandom(), None if rules is None else rules.as_carried()),
                on_rules,
            )
            await tasks.start(keep, cluster.run)
            for scope in scopes:
                scope.shield = True  # When the caller is cancelled, closing still sends messages.
            error = await cluster.wait_joined(connect_timeout)
            if error is not None and (
                raise_on_outage or isinstance(error, AccessDenied | ConfigError)
            ):
                raise error
            try:
                yield cluster
            finally:
                await cluster.aclose()
                transport.flush()
        except runtime.cancelled_error():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again outside of the task group
            failure = error
        finally:
            for scope in scopes:
                scope.cancel()
            if is_same_task():  # Otherwise, this would cancel the task that has opened it.
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _new_transport(tls: ClientTls) -> AsyncioUdp | CallerLoopUdp | TrioUdp:
    """Create the transport for the running event loop, and import only what that loop needs."""
    errors = InternalErrors(logger, runtime.current_time)
    on_bug = partial(errors.failed, "the client")
    if runtime.in_trio_run():
        from ringfence.transport.udp.udp_trio import TrioUdp

        return TrioUdp(on_bug=on_bug, client=tls)
    loop = runtime.current_runtime()
    if loop is not None:
        from ringfence.runtime.caller_loop import CallerLoop
        from ringfence.transport.udp.udp_caller_loop import CallerLoopUdp

        assert isinstance(loop, CallerLoop)
        return CallerLoopUdp(loop, on_bug=on_bug, client=tls)
    from ringfence.transport.udp.udp_asyncio import AsyncioUdp

    return AsyncioUdp(on_bug=on_bug, client=tls)


@limiter_context
@asynccontextmanager
async def local(
    rules: RulesSource,
    *,
    max_keys: int = 1_000_000,
    clock: Clock | None = None,
    strict: bool = False,
) -> AsyncIterator[Limiter]:
    """Open a limiter in this process, without any node: for tests and small applications.

    Args:
        rules: A rule file or directory, the same as a mapping, or a `RuleSet`. Reading files needs
            the extra `node`, for YAML.
        max_keys: Number of counters that are kept.
        clock: Clock that replaces the system's; a test can advance it.
        strict: Raise `ConfigError` for a check that no rule can match.
    """
    limiter = local_limiter(rules, max_keys=max_keys, clock=clock, strict=strict)
    try:
        yield limiter
    finally:
        await limiter.aclose()


def local_limiter(
    rules: RulesSource,
    *,
    max_keys: int,
    clock: Clock | None,
    in_loop: bool = True,
    strict: bool = False,
) -> Limiter:
    """Create the limiter of `local`; `in_loop=False` is for threads that have no event loop."""
    decider = LocalDecider(rules_of(rules), clock or SystemClock(), max_keys, in_loop=in_loop)
    return Limiter(decider, in_loop=in_loop, unmatched=UnmatchedChecks(strict=strict))


def client_hello(url: ClusterUrl) -> Hello:
    """Create the `Hello` message of a client, the first one on a connection."""
    token = url.token
    return Hello(
        Role.CLIENT,
        token.name if token else "anonymous",
        token.secret if token else b"",
        secrets.randbits(64),
    )


def links_of(url: ClusterUrl, deadline: float | None, frame_interval: float = 0.0) -> LinkSettings:
    """Return the link settings of a client whose callers wait for at most `deadline` seconds."""
    links = LinkSettings(frame_interval=frame_interval)
    if url.timeout is not None:
        links = replace(links, answer_timeout=url.timeout, slow_timeout=2 * url.timeout)
    if deadline is None:
        return links
    return replace(
        links,
        deadline=deadline,
        # A node is lost after twice this time, and its standby must be asked before the deadline.
        answer_timeout_margin=min(links.answer_timeout_margin, deadline / 5),
    )


def rules_of(rules: RulesSource) -> RuleSet:
    """Read rules from a file, directory, mapping or `RuleSet`. Raises `ConfigError`."""
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, Mapping):
        from ringfence.rules.loading.mapping import load_mapping

        return load_mapping(rules).rules
    if not isinstance(rules, str | Path) or rules == "":
        raise ConfigError(
            f"rules must be a file or directory, a mapping or a RuleSet, got {rules!r}; give one"
        )
    try:
        from ringfence.rules.loading.yaml_files import load_path
    except ImportError as error:
        raise ConfigError(
            "reading rule files needs PyYAML; install it with the extra of nodes: "
            "pip install '.[node]' in a checkout, or 'ringfence[node]' where it is published"
        ) from error
    return load_path(Path(rules)).rules


def tls_of(url: ClusterUrl) -> ClientTls:
    """Load the certificate authority for TLS; it may be missing only for a cluster on this host."""
    if url.ca is not None:
        return load_client_tls(url.ca, datetime.now(UTC), server_name=url.server_name or NODE_NAME)
    beyond = [host for host, _ in url.seeds if not _is_loopback(host)]
    if beyond:
        raise ConfigError(
            f"cluster address: {beyond[0]} is beyond loopback, so its certificate must be checked; "
            "add ?ca=FILE with the ca.pem that `ringfence keys new` wrote"
        )
    return ClientTls(verify=False)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
