"""`ringfence keys`: make the secrets of a cluster, and change the one that nodes share."""

from pathlib import Path

import click

from node.access import KeyDir
from node.cli.common import as_json, json_option
from node.keys import add_node as add_node_keys
from node.keys import rotate as rotate_key
from node.keys import write_keys

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
    type=click.IntRange(1, 3650),
    help="How long they hold.",
)


@click.group()
def keys() -> None:
    """Make the keys of a cluster."""


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
    """Write CA, node certificates, cluster key and tokens into DIRECTORY, readable by you alone.

    With --node, each node gets a certificate of its own: copy ca.pem, cluster.key, tokens.toml and
    the node's two files below nodes/ to that node. Without it, all nodes share node.pem, and its
    key stands for all of them. ca.pem and one token file go to each client. Keep ca.key where no
    node is. Nothing that exists is overwritten.
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
    click.echo(f"clients: ringfence://$(cat {first})@HOST:PORT?ca={key_dir.ca}")


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("name")
@_names_option
@_addresses_option
@_days_option
@click.option("--replace", is_flag=True, help="Make the files anew when they exist.")
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
    if json_:
        files = [str(path.relative_to(directory)) for path in written]
        as_json({"directory": str(directory), "files": files})
        return
    for path in written:
        click.echo(f"wrote {path}")


@keys.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("step", type=click.Choice(["add", "use", "drop"]))
@json_option
def rotate(directory: Path, step: str, json_: bool) -> None:
    """Change the cluster key in DIRECTORY while the nodes run, in three steps.

    `add` makes a key that is taken besides the old one, `use` makes it the one that is used, and
    `drop` forgets the old one. After each step copy cluster.key to every node and send each a
    SIGHUP, before the next step.
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
