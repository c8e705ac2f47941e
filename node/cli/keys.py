"""`ringfence keys`: create, list and change the keys and tokens of a cluster."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import click
from msgspec.structs import asdict
from rich.table import Table

from node.cli.common import IntegerRange, VerbGroup, as_json, console, json_option, printable
from node.config.access import KeyDir
from node.config.key_files import add_node as add_node_keys
from node.config.key_files import add_token as add_token_to
from node.config.key_files import renew as renew_certificates
from node.config.key_files import revoke_token as revoke_token_in
from node.config.key_files import rotate as rotate_key
from node.config.key_files import write_keys
from node.config.key_listing import CertificateRow, TokenRow, list_certificates, list_tokens

__all__ = ["keys"]

_DEFAULT_TOKENS = ("app:check", "operator:check,reset,observe,admin")

_names_option = click.option(
    "--name", "names", multiple=True, help="Host name that certificates cover; repeatable."
)
_addresses_option = click.option(
    "--address", "addresses", multiple=True, help="IP address they cover; repeatable."
)
_days_option = click.option(
    "--days",
    default=825,
    show_default=True,
    type=IntegerRange(1, 3650),
    help="How long they hold.",
)


@click.group(cls=VerbGroup)
def keys() -> None:
    """Create, list and change the keys and tokens of a cluster."""


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    help="Node that gets a certificate of its own; repeatable. All share one when absent.",
)
@_names_option
@_addresses_option
@click.option(
    "--token",
    "tokens",
    multiple=True,
    metavar="NAME:SCOPE,SCOPE",
    help="A client's token; scopes are check, refund, reset, observe, admin. "
    f"Repeatable; {' and '.join(_DEFAULT_TOKENS)} when absent.",
)
@_days_option
@json_option
def new(
    directory: Path,
    nodes: tuple[str, ...],
    names: tuple[str, ...],
    addresses: tuple[str, ...],
    tokens: tuple[str, ...],
    days: int,
    json_: bool,
) -> None:
    """Write CA, node certificates, cluster key and tokens into DIRECTORY, readable only by you.

    With --node, each node gets its own certificate: copy ca.pem, cluster.key, tokens.toml and the
    node's two files below nodes/ to that node. Without it, all nodes share node.pem and its key.
    Copy ca.pem and one token file to each client. Keep ca.key on no node. Existing files are not
    overwritten.
    """
    written = write_keys(directory, names, addresses, tokens or _DEFAULT_TOKENS, days, nodes)
    key_dir = KeyDir(directory)
    if json_:
        as_json(
            {
                "directory": str(directory),
                "files": [str(path.relative_to(directory)) for path in written],
            }
        )
        return
    for path in written:
        click.echo(f"wrote {path}")
    click.echo(f'nodes: set keys = "{directory}"')
    first = next(path for path in written if path.suffix == ".token")
    ca, token = quote(str(key_dir.ca)), quote(str(first))
    click.echo(f'clients: "ringfence://HOST:PORT?ca={ca}&token_file={token}"')


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("name")
@_names_option
@_addresses_option
@_days_option
@click.option("--replace", is_flag=True, help="Overwrite existing files.")
@json_option
def add_node(
    directory: Path,
    name: str,
    names: tuple[str, ...],
    addresses: tuple[str, ...],
    days: int,
    replace: bool,
    json_: bool,
) -> None:
    """Write a certificate and private key of the node NAME below DIRECTORY/nodes.

    DIRECTORY must hold ca.pem and ca.key. Copy the two files to nodes/ in the key folder of that
    node, then start the node or send it a SIGHUP.
    """
    written = add_node_keys(directory, name, names, addresses, days, replace=replace)
    _show_written(directory, written, json_)


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@_days_option
@json_option
def renew(directory: Path, nodes: tuple[str, ...], days: int, json_: bool) -> None:
    """Renew the certificates of NODEs, or all in DIRECTORY; they keep names and addresses.

    Each certificate gets a new private key. DIRECTORY must hold ca.pem and ca.key. Copy the new
    files to the node's key folder, then send the node a SIGHUP.
    """
    written = renew_certificates(directory, nodes, days)
    _show_written(directory, written, json_)
    if not json_:
        click.echo("copy each pair to its node and send the node a SIGHUP")


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("token", metavar="NAME:SCOPE,SCOPE")
@click.option(
    "--domain",
    "domains",
    multiple=True,
    help="Domain that the token may use; repeatable. All domains when absent.",
)
@json_option
def add_token(directory: Path, token: str, domains: tuple[str, ...], json_: bool) -> None:
    """Add a client's token to DIRECTORY/tokens.toml and write its secret to DIRECTORY/NAME.token.

    Scopes are check, refund, reset, observe, admin. Copy tokens.toml to every node and send each
    node a SIGHUP. Copy NAME.token only to the client.
    """
    file = add_token_to(directory, token, domains)
    _show_written(directory, [KeyDir(directory).tokens, file], json_)
    if not json_:
        _print_tokens_changed()


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("name")
@json_option
def revoke_token(directory: Path, name: str, json_: bool) -> None:
    """Remove the token NAME from DIRECTORY/tokens.toml, and the file DIRECTORY/NAME.token.

    Copy tokens.toml to every node and send each node a SIGHUP, which ends connections with the
    token.
    """
    changed = revoke_token_in(directory, name)
    if json_:
        files = [str(path.relative_to(directory)) for path in changed]
        as_json({"directory": str(directory), "revoked": name, "files": files})
        return
    click.echo(f"removed {name} from {changed[0]}")
    for path in changed[1:]:
        click.echo(f"deleted {path}")
    _print_tokens_changed()


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@json_option
def show(directory: Path, json_: bool) -> None:
    """List the certificates in DIRECTORY with their expiry, and the tokens with their scopes.

    It shows no secret. Tokens are valid until they are revoked.
    """
    certificates = list_certificates(KeyDir(directory), datetime.now(UTC))
    tokens = list_tokens(KeyDir(directory))
    if json_:
        as_json(
            {
                "directory": str(directory),
                "certificates": [
                    {**asdict(row), "expires": f"{row.expires:%Y-%m-%dT%H:%M:%SZ}"}
                    for row in certificates
                ],
                "tokens": [asdict(row) for row in tokens],
            }
        )
        return
    screen = console()
    screen.print(_certificate_table(certificates))
    screen.print()
    screen.print(_token_table(tokens))


def _certificate_table(rows: list[CertificateRow]) -> Table:
    table = Table("certificate", "expires", "days left", "covers", box=None, pad_edge=False)
    for row in rows:
        covers = ", ".join([*row.names, *row.addresses])
        left = str(row.days_left) if row.days_left >= 0 else "expired"
        table.add_row(row.file, f"{row.expires:%Y-%m-%d}", left, printable(covers))
    return table


def _token_table(rows: list[TokenRow]) -> Table:
    table = Table("token", "scopes", "domains", box=None, pad_edge=False)
    for row in rows:
        domains = "all" if row.domains is None else ", ".join(row.domains)
        table.add_row(printable(row.name), ", ".join(row.scopes), printable(domains))
    return table


def _show_written(directory: Path, written: list[Path], json_: bool) -> None:
    if json_:
        files = [str(path.relative_to(directory)) for path in written]
        as_json({"directory": str(directory), "files": files})
        return
    for path in written:
        click.echo(f"wrote {path}")


def _print_tokens_changed() -> None:
    click.echo("copy tokens.toml to every node and send each a SIGHUP")


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("step", type=click.Choice(["add", "use", "drop"]))
@json_option
def rotate(directory: Path, step: str, json_: bool) -> None:
    """Change the cluster key in DIRECTORY while the nodes run, in three steps.

    `add` makes a new key that nodes accept besides the old one. `use` makes nodes send with the new
    key, and `drop` removes the old one. After each step, copy cluster.key to every node and send
    each node a SIGHUP before the next step.
    """
    now = rotate_key(directory, step)
    following = {"add": "use", "use": "drop", "drop": None}[step]
    if json_:
        as_json({"step": step, "now": now, "next": following})
        return
    click.echo(f"{KeyDir(directory).cluster_key}: {now}")
    click.echo(
        "copy it to every node and send each a SIGHUP"
        + (f"; then: ringfence keys rotate {directory} {following}" if following else "")
    )
