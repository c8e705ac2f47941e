"""`ringfence throttled`: the keys with the most denials in the whole cluster.

A key may be denied by its owner and by clients, which report to any node. So the counts of all
nodes are added. The lists come from the nodes or from their admin ports.
"""

import json
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException, InvalidURL
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

import click
import msgspec
from click.core import ParameterSource
from rich.table import Table

from node.cli.cluster.cluster_command import ClusterCommand, Query
from node.cli.cluster.members import GONE
from node.cli.common import (
    IntegerRange,
    Output,
    cluster_option,
    json_option,
    need_cluster,
    printable,
)
from node.metrics.denied_keys import DeniedKey, joined, values_of
from node.metrics.throttled_keys import PERIOD
from ringfence import runtime
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.url import masked
from ringfence.errors import ConfigError, PeerUnavailable, RemoteProtocolError, RingfenceError
from ringfence.peering.routing import Routes
from ringfence.rules import RuleSet
from ringfence.rules.descriptor_tree import place
from ringfence.wire import MAX_THROTTLED, MemberRow, Throttled

__all__ = ["throttled"]

_TIMEOUT = 5.0
_LONGEST_ANSWER = 4 << 20
_AT_ONCE = 16
_PLAIN_HTTP = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""Errors of TLS when the other side sends plain HTTP; the name depends on the OpenSSL version."""
_WRONG_NAME = (62, 64)
"""Codes of OpenSSL for a certificate without the host name, and without the IP address."""

_ADVICE_BY_STATUS = {
    401: "; give --token-file NAME.token",
    404: "; give the URL of the port without a path",
}
"""What to change, by the status of an error."""


class _Key(msgspec.Struct):
    identity: str
    key: str
    denied: int
    error: int
    rule: str | None = None
    removed: bool = False
    shadow: bool = False
    quota: bool = False
    counter: list[list[str] | str] | None = None
    owner: str | None = None
    """The node that decides it."""
    nodes: dict[str, int] = {}
    """Denials that each node counted."""


class _Report(msgspec.Struct):
    asked: str
    denied: int
    seconds: tuple[float, float]
    keys: list[_Key]
    nodes: dict[str, int] = {}
    """All denials per node; empty when only the queried node counted."""
    counting_s: dict[str, int] = {}
    """Seconds since each node began to count."""
    missing: list[str] = []
    """Nodes that did not answer."""


@click.command(cls=ClusterCommand)
@click.argument("urls", nargs=-1, metavar="[URL]...")
@cluster_option
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="For URL: a .token file with the scope observe; nodes without keys need none.",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="For URL: ca.pem of the cluster, for https.",
)
@click.option("--count", default=20, show_default=True, type=IntegerRange(1, MAX_THROTTLED))
@json_option
def throttled(
    urls: tuple[str, ...],
    cluster: str | None,
    token_file: Path | None,
    ca: Path | None,
    count: int,
    json_: bool,
) -> Query[list[_Report]] | None:
    """Show the keys that all nodes denied most during the last five to ten minutes.

    It queries the nodes of --cluster, with a token that has the scope observe. URL names a node's
    admin port instead, as in http://127.0.0.1:7190; one is enough, because it queries the other
    nodes. Of several ports, one must send its list; --json prints the `errors` of the others. A
    node without an admin port counts from the first such query on.
    """
    for url in urls:
        _check_url(url)
    source = click.get_current_context().get_parameter_source("cluster")
    if urls and source is ParameterSource.COMMANDLINE:
        raise ConfigError("--cluster must be used without URL: each of them names nodes to query")
    if urls:
        opener, headers = _opener(ca), _headers(token_file)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = [*pool.map(lambda url: _ask_or_error(opener, url, headers, count), urls)]
        reports = [each for each in answers if isinstance(each, _Report)]
        errors = [each for each in answers if not isinstance(each, _Report)]
        if not reports:
            raise type(errors[0])("\n".join(map(str, errors)))
        _show(count, json_, reports, Output(), errors)
        return None
    if token_file is not None or ca is not None:
        raise ConfigError(
            "--token-file and --ca belong to the URL of an admin port; write "
            "--cluster 'ringfence://HOST:PORT?ca=FILE&token_file=FILE' instead"
        )
    return Query(need_cluster(cluster), _ask_cluster, partial(_show, count, json_))


def _show(
    count: int,
    json_: bool,
    reports: Sequence[_Report],
    output: Output,
    errors: Sequence[RingfenceError] = (),
) -> None:
    """Print the merged lists of denied keys, and the errors of the ports that sent none; a node
    that appears in the lists of two admin ports counts once."""
    for error in errors:
        output.error(f"not counted: {error}")
    totals: dict[str, int] = {}
    counting_s: dict[str, int] = {}
    keys: dict[str, _Key] = {}
    for each in reports:
        totals |= each.nodes or {each.asked: each.denied}
        counting_s |= each.counting_s
        for key in each.keys:
            key.nodes = key.nodes or {each.asked: key.denied}
            before = keys.setdefault(key.key, key)
            before.nodes |= key.nodes
            before.denied = sum(before.nodes.values())
            before.error = max(before.error, key.error)
    found = sorted(keys.values(), key=lambda key: (-key.denied, key.error, key.key))[:count]
    missing = sorted({name for each in reports for name in each.missing} - totals.keys())
    total = sum(totals.values())
    if json_:
        rows = [{"node": _decider(key), **msgspec.to_builtins(key)} for key in found]
        asked = [each.asked for each in reports]
        output.json(
            {
                "asked": asked,
                "missing": missing,
                "errors": [str(error) for error in errors],
                "counting_s": counting_s,
                "denied": total,
                "keys": rows,
            }
        )
        return
    late = [f"{name} ({s} s ago)" for name, s in sorted(counting_s.items()) if s < PERIOD]
    if found:
        screen = output.console()
        screen.print(_table(found))
        screen.print(f"{total} denials in all during the last 5 to 10 minutes")
    else:
        output.line(f"no checks were denied {'since the counting began' if late else 'lately'}")
    if late:
        output.error(
            f"began to count only recently: {', '.join(late)}; earlier denials are not included"
        )
    if missing:
        output.error(f"not counted, since they do not answer: {', '.join(missing)}")


def _table(found: Sequence[_Key]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("denied", "key", "rule", "node"):
        justify = "right" if heading == "denied" else "left"
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for key in found:
        least = f"{key.denied - key.error} to {key.denied}" if key.error else str(key.denied)
        marks = ["removed"] * key.removed + ["shadow"] * key.shadow + ["quota"] * key.quota
        rule = ", ".join([key.rule or "no rule here", *marks])
        table.add_row(least, printable(_name(key)), printable(rule), printable(_decider(key)))
    return table


def _decider(key: _Key) -> str:
    """Return the node that decides a key; if it is unknown, the first node that counted the key."""
    return key.owner or next(iter(key.nodes), "")


def _name(key: _Key) -> str:
    """Format a key for the table, such as `client=203.0.113.7`."""
    if key.counter is None:
        return f"#{key.key}"
    parts = [
        part if isinstance(part, str) else "=".join(filter(None, part)) for part in key.counter
    ]
    return ", ".join(parts) or "all of the rule"


async def _ask_cluster(cluster: Cluster) -> list[_Report]:
    """Query every member of a cluster for its denied keys."""
    lists: dict[str, Throttled] = {}

    async def ask(row: MemberRow) -> None:
        listed = await cluster.admin.throttled(row, MAX_THROTTLED)
        if listed is not None:
            lists[row.name] = listed

    members = [row for row in cluster.members if row.state != "left"]
    known = [row for row in members if row.state not in GONE]
    async with runtime.open_task_group() as tasks:
        for row in known:
            tasks.start_soon(ask, row)
    refusal = cluster.outage()
    if refusal is not None:
        raise refusal  # The members are reachable, but the token lacks the scope.
    if not lists:
        raise PeerUnavailable("no member of the cluster sent its list of denied keys")
    found, routes = joined(lists), cluster.routes
    return [
        _Report(
            next(iter(lists)),
            found.denied,
            (PERIOD, 2 * PERIOD),
            [_key_of(cluster.rules, routes, each) for each in found.keys],
            {name: listed.denied for name, listed in sorted(lists.items())},
            {name: listed.counting_s for name, listed in sorted(lists.items())},
            sorted(row.name for row in members if row.name not in lists),
        )
    ]


def _key_of(rules: RuleSet, routes: Routes | None, denied: DeniedKey) -> _Key:
    identity = denied.key[:8]
    rule = rules.by_id(int.from_bytes(identity, "big"))
    counter: list[list[str] | str] | None = None
    values = values_of(rule, denied.key)
    if values is not None:
        counter = [*values]
    return _Key(
        identity.hex(),
        denied.key.hex(),
        denied.denied,
        denied.error,
        None if rule is None else place(rule.domain, rule.path),
        shadow=rule is not None and rule.shadow,
        quota=rule is not None and rule.quota,
        counter=counter,
        owner=None if routes is None else routes.owner(denied.key),
        nodes=denied.nodes,
    )


def _opener(ca: Path | None) -> OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--ca {ca}: no certificate authority: {error}; give the cluster's ca.pem"
        ) from error
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context))


def _headers(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        return {}
    try:
        token = token_file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--token-file {token_file}: cannot be read: {_plain(error)}; give a .token file that "
            "`ringfence keys new` wrote"
        ) from error
    return {"Authorization": f"Bearer {token}"}


def _check_url(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            "the address of an admin port must be a URL such as http://127.0.0.1:7190, "
            f"got {masked(url)!r}"
        )
    if "@" in url.split("/")[2]:
        raise ConfigError(
            f"the URL of an admin port must have no token, got {masked(url)!r}; use --token-file"
        )


def _ask_or_error(
    opener: OpenerDirector, url: str, headers: dict[str, str], count: int
) -> _Report | RingfenceError:
    """Return the list of an admin port, or the error if it sends none."""
    try:
        return _ask(opener, url, headers, count)
    except (ConfigError, PeerUnavailable, RemoteProtocolError) as error:
        return error


def _ask(opener: OpenerDirector, url: str, headers: dict[str, str], count: int) -> _Report:
    place = masked(url)
    try:
        request = Request(f"{url.rstrip('/')}/v1/throttled?count={count}", headers=headers)  # noqa: S310
        with opener.open(request, timeout=_TIMEOUT) as answer:
            return msgspec.json.decode(answer.read(_LONGEST_ANSWER), type=_Report)
    except HTTPError as error:
        raise ConfigError(f"{place}: {_reason(error)}") from error
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(
            f"{place}: the reply must be that of an admin port: {error}"
        ) from error
    except (URLError, OSError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise PeerUnavailable(f"{place}: no answer: {_plain(reason)}; {_remedy(reason)}") from error
    except (InvalidURL, ValueError) as error:
        raise ConfigError(f"{place!r} must be a URL: {masked(str(error))}") from error
    except HTTPException as error:
        raise RemoteProtocolError(f"{place}: the reply must be HTTP: {error!r}") from error


def _plain(reason: object) -> object:
    """Return the reason of a failure without the number and the path that Python adds."""
    return (isinstance(reason, OSError) and reason.strerror) or reason


def _remedy(reason: object) -> str:
    """Suggest what to change when no node answered, by the reason of the failure."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        if reason.verify_code in _WRONG_NAME:
            return (
                "use a name of the certificate in the URL, or add this one: ringfence keys "
                "add-node keys NAME --replace with all --name and --address options"
            )
        return "give the cluster's ca.pem with --ca"
    if isinstance(reason, ssl.SSLError) and reason.reason in _PLAIN_HTTP:
        return "the port answers without TLS: write http:// instead of https://"
    return "is the node running, with --http at this address?"


def _reason(error: HTTPError) -> str:
    try:
        problem = json.loads(error.read(_LONGEST_ANSWER))
        return f"{problem['title']}; {problem['detail']}{_ADVICE_BY_STATUS.get(error.code, '')}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"it answers {error.code}; is this an admin port?"
