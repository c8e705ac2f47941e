"""`ringfence node`: run one member of the cluster."""

from pathlib import Path

import click
import trio

from node.cli.common import log_to_stderr
from node.settings import load_settings

__all__ = ["node"]


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file; see docs/operations. RINGFENCE_NODE_* variables and flags go over it.",
)
@click.option("--name", help="Which of the listed members this node is.")
@click.option("--listen", metavar="HOST:PORT", help="Address to bind instead of the member's own.")
@click.option("--rules", help="Rule file or directory.")
@click.option("--keys", help="Directory that `ringfence keys new` wrote.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def node(
    config: Path | None,
    name: str | None,
    listen: str | None,
    rules: str | None,
    keys: str | None,
    log_level: str,
) -> None:
    """Run a node until SIGTERM; SIGHUP reads the rules again."""
    from node.serve import serve

    flags = {"name": name, "listen": listen, "rules": rules, "keys": keys}
    with log_to_stderr(log_level):
        trio.run(serve, load_settings(config, flags=flags))
