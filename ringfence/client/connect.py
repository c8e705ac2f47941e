"""How a limiter comes to be: over a cluster, or in this process alone."""

import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from random import SystemRandom

import anyio
from trio.lowlevel import in_trio_run

from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.client.limiter import Limiter
from ringfence.client.local_decider import LocalDecider
from ringfence.client.opening import entered
from ringfence.client.requests.descriptors import checked_seconds
from ringfence.client.url import ENVIRONMENT, ClusterUrl, parse_url
from ringfence.errors import AccessDenied, ConfigError
from ringfence.peering.clock import Clock, SystemClock
from ringfence.peering.internal_errors import InternalErrors
from ringfence.peering.link import LinkSettings
from ringfence.rules import RuleSet
from ringfence.runtime import current_time
from ringfence.transport.tls.certificates import NODE_NAME, ClientTls, load_client_tls
from ringfence.transport.udp.udp_asyncio import AsyncioUdp
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire import Hello, Role

__all__ = ["client_hello", "connect", "links_of", "local", "open_cluster", "rules_of"]

logger = logging.getLogger("ringfence.client")


@entered
@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    raise_on_outage: bool = False,
    rules: RuleSet | None = None,
    wait: float = 5.0,
    denials: int = 65_536,
    leases: bool = True,
    strict: bool = False,
) -> AsyncIterator[Limiter]:
    """Connect to a cluster: `async with ringfence.connect(URL) as limiter`. On trio and on asyncio.

    `url` reads `ringfence://TOKEN@HOST:PORT,HOST:PORT?ca=FILE`; when None, the environment's
    `RINGFENCE_URL` is taken. `rules` replaces those of the cluster for this client: each check then
    carries its limit. `denials` is how many denials are remembered, so that whoever asks again
    before `retry_after` is denied in this process at once; 0 asks a member each time. With
    `leases`, units of keys that are asked about often are borrowed and spent here. A check that no
    rule can match, as of a misspelt domain, is a warning in the log, and with `strict` a
    `ConfigError`. When no member
    answers within `wait` seconds, the limiter is there all the same and lets everything pass
    until one does; with `raise_on_outage` that raises `PeerUnavailable`, here and in checks.
    Whatever that says, wrong settings are told at once: `ConfigError` for a bad address or a data
    center that no member is in, `UntrustedPeer` for certificates that the CA given did not sign or
    that name somebody else, and `AccessDenied` for a token that is not accepted.
    """
    if url is None:
        url = os.environ.get(ENVIRONMENT)
        if not url:
            raise ConfigError(
                "no cluster address: give one to connect(), or set RINGFENCE_URL "
                "to ringfence://TOKEN@HOST:PORT?ca=FILE"
            )
    async with open_cluster(
        parse_url(url),
        raise_on_outage=raise_on_outage,
        rules=rules,
        wait=wait,
        denials=denials,
        leases=leases,
    ) as cluster:
        limiter = Limiter(
            cluster, raise_on_outage=raise_on_outage, near=cluster.near, strict=strict
        )
        cluster.on_rules = limiter.rules_changed
        try:
            yield limiter
        finally:
            limiter.close()
            await limiter.release_held()


@asynccontextmanager
async def open_cluster(
    url: ClusterUrl,
    *,
    raise_on_outage: bool = False,
    rules: RuleSet | None = None,
    route: bool = True,
    wait: float = 5.0,
    denials: int = 65_536,
    leases: bool = True,
    patience: float | None = None,
    deadline: float | None = None,
) -> AsyncIterator[Cluster]:
    """Connect as `connect` does; for tools that want to see members and counters too.

    `patience` is how long at most an owner may take over a check before its standby is asked as
    well, which is told that it has what is left then until `deadline`. Owners are told the
    `deadline`.
    """
    checked_seconds("wait", wait)
    if type(denials) is not int or denials < 0:
        raise ConfigError(f"denials {denials!r} is no number of keys; give 0 or more")
    if not isinstance(rules, RuleSet | None):
        raise ConfigError(f"rules {rules!r} is no RuleSet")
    tls = _tls_of(url)
    settings = ClusterSettings(
        datacenter=url.datacenter,
        link=links_of(url, deadline),
        route=route,
        denials=denials,
        leases=bool(leases),
        patience=patience,
    )
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            # trio's own shell saves a lone check what anyio's detours cost.
            shell = TrioUdp if in_trio_run() else AsyncioUdp
            errors = InternalErrors(logger, current_time)
            transport = shell(on_bug=partial(errors.failed, "the client"), client=tls)
            await tasks.start(transport.run)
            cluster = Cluster(
                transport,
                url.seeds,
                client_hello(url),
                settings,
                SystemClock(),
                SystemRandom(),
                None if rules is None else rules.as_carried(),
            )
            await tasks.start(cluster.run)
            error = await cluster.wait_joined(wait)
            if error is not None and (
                raise_on_outage or isinstance(error, AccessDenied | ConfigError)
            ):
                raise error
            try:
                yield cluster
            finally:
                await cluster.report()
                cluster.close()
                transport.flush()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again outside of the task group
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


@entered
@asynccontextmanager
async def local(
    rules: RuleSet | Mapping[str, object] | str | Path,
    *,
    max_keys: int = 1_000_000,
    clock: Clock | None = None,
    strict: bool = False,
) -> AsyncIterator[Limiter]:
    """The same limiter in one process without any node, for tests and small applications.

    `rules` is a rule file or directory (that needs the `node` extra, for YAML), the same as a
    mapping, or a `RuleSet`. `clock` lets a test move time by hand. `strict` is that of `connect`.
    """
    limiter = local_limiter(rules, max_keys=max_keys, clock=clock, strict=strict)
    try:
        yield limiter
    finally:
        limiter.close()


def local_limiter(
    rules: RuleSet | Mapping[str, object] | str | Path,
    *,
    max_keys: int,
    clock: Clock | None,
    in_loop: bool = True,
    strict: bool = False,
) -> Limiter:
    """Make the limiter of `local`; `in_loop=False` for threads that have no event loop."""
    decider = LocalDecider(rules_of(rules), clock or SystemClock(), max_keys, in_loop=in_loop)
    return Limiter(decider, in_loop=in_loop, strict=strict)


def client_hello(url: ClusterUrl) -> Hello:
    """What a client says first."""
    token = url.token
    return Hello(
        Role.CLIENT,
        token.name if token else "anonymous",
        token.secret if token else b"",
        secrets.randbits(64),
    )


def links_of(url: ClusterUrl, deadline: float | None) -> LinkSettings:
    """Return the time-outs of links for callers that wait until `deadline`."""
    links = LinkSettings()
    if url.timeout is not None:
        links = replace(links, answer_timeout=url.timeout, slow_timeout=2 * url.timeout)
    if deadline is None:
        return links
    return replace(
        links,
        deadline=deadline,
        # Twice as long without any answer, and a member is lost: its standby must be asked in time.
        answer_timeout_least=min(links.answer_timeout_least, deadline / 5),
    )


def rules_of(rules: RuleSet | Mapping[str, object] | str | Path) -> RuleSet:
    """Read rules, whichever way they are given. Raises `ConfigError`."""
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, Mapping):
        from ringfence.rules.loading.mapping import load_mapping

        return load_mapping(rules).rules
    if not isinstance(rules, str | Path):
        raise ConfigError(f"rules {rules!r}: give a file or directory, a mapping or a RuleSet")
    try:
        from ringfence.rules.loading.yaml_files import load_path
    except ImportError as error:
        raise ConfigError(
            "reading rule files needs PyYAML; install it with the extra of nodes: "
            "pip install '.[node]' in a checkout, or 'ringfence[node]' where it is published"
        ) from error
    return load_path(Path(rules)).rules


def _tls_of(url: ClusterUrl) -> ClientTls:
    """Verify against the cluster's CA; only a cluster on this very host may do without."""
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
