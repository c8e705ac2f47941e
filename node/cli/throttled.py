"""`ringfence throttled`: whose checks are denied most, asked of the nodes' operator's ports.

Each key is decided by one node, so the lists of all nodes together are the cluster's.
"""

import json
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import TypeAlias
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

import click
import msgspec
from rich.table import Table

from node.cli.common import as_json, console, json_option, printable
from ringfence.client.url import masked
from ringfence.errors import ConfigError, PeerUnavailable, RemoteProtocolError

__all__ = ["throttled"]

_PATIENCE = 5.0
_LONGEST_ANSWER = 4 << 20
_AT_ONCE = 16


class _Key(msgspec.Struct, frozen=True):
    identity: str
    key: str
    denied: int
    error: int
    rule: str | None = None
    shadow: bool = False
    quota: bool = False
    counter: list[tuple[str, str] | str] | None = None


class _Told(msgspec.Struct, frozen=True):
    asked: str
    denied: int
    seconds: tuple[float, float]
    keys: list[_Key]


_Found: TypeAlias = tuple[str, _Key]
"""A key, and the node that decides it."""


@click.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .token file with the scope observe; nodes without keys need none.",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="ca.pem of the cluster, for https.",
)
@click.option("--count", default=20, show_default=True, type=click.IntRange(1, 256))
@json_option
def throttled(
    urls: tuple[str, ...], token_file: Path | None, ca: Path | None, count: int, json_: bool
) -> None:
    """Show the keys that were denied most during the last five to ten minutes.

    URL is a node's operator's port, as in http://127.0.0.1:7190; name those of all nodes.
    """
    opener, headers = _opener(ca), _headers(token_file)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        told = list(pool.map(lambda url: _ask(opener, url, headers, count), urls))
    found: list[_Found] = [(each.asked, key) for each in told for key in each.keys]
    found.sort(key=lambda row: (-row[1].denied, row[1].error, row[1].key))
    _show(told, found[:count], json_)


def _show(told: Sequence[_Told], found: Sequence[_Found], json_: bool) -> None:
    total = sum(each.denied for each in told)
    if json_:
        rows = [{"node": node, **msgspec.to_builtins(key)} for node, key in found]
        as_json({"asked": [each.asked for each in told], "denied": total, "keys": rows})
        return
    if not found:
        click.echo("nobody was denied lately")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("denied", "key", "rule", "node"):
        justify = "right" if heading == "denied" else "left"
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for node, key in found:
        least = f"{key.denied - key.error} to {key.denied}" if key.error else str(key.denied)
        mark = ", shadow" if key.shadow else ", quota" if key.quota else ""
        rule = (key.rule or "no rule here") + mark
        table.add_row(least, printable(_name(key)), printable(rule), printable(node))
    screen = console()
    screen.print(table)
    screen.print(f"{total} denials in all during the last 5 to 10 minutes")


def _name(key: _Key) -> str:
    """What the key counts, as `client=203.0.113.7`."""
    if key.counter is None:
        return f"#{key.key}"
    parts = [
        part if isinstance(part, str) else "=".join(filter(None, part)) for part in key.counter
    ]
    return ", ".join(parts) or "all of the rule"


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
            f"--token-file {token_file}: cannot be read: {error}; give a .token file that "
            "`ringfence keys new` wrote"
        ) from error
    return {"Authorization": f"Bearer {token}"}


def _ask(opener: OpenerDirector, url: str, headers: dict[str, str], count: int) -> _Told:
    place = masked(url)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            "the address of an operator's port must be a URL such as http://127.0.0.1:7190, "
            f"got {place!r}"
        )
    try:
        request = Request(f"{url.rstrip('/')}/v1/throttled?count={count}", headers=headers)  # noqa: S310
        with opener.open(request, timeout=_PATIENCE) as answer:
            return msgspec.json.decode(answer.read(_LONGEST_ANSWER), type=_Told)
    except HTTPError as error:
        raise ConfigError(f"{place}: {_reason(error)}") from error
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(
            f"{place}: the reply must be that of an operator's port: {error}"
        ) from error
    except (URLError, OSError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise PeerUnavailable(
            f"{place}: no answer: {reason}; is the node running, with --http at this address?"
        ) from error
    except (InvalidURL, ValueError) as error:
        raise ConfigError(f"{place!r} must be a URL: {masked(str(error))}") from error
    except HTTPException as error:
        raise RemoteProtocolError(f"{place}: the reply must be HTTP: {error!r}") from error


def _reason(error: HTTPError) -> str:
    try:
        told = json.loads(error.read(_LONGEST_ANSWER))
        return f"{told['title']}; {told['detail']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"it answers {error.code}; is this an operator's port?"
