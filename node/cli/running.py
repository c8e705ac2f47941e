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
@click.option("--name", help="Unique in the cluster; host and port when absent.")
@click.option(
    "--listen", metavar="HOST:PORT", help="UDP address to bind; 127.0.0.1:7101 when absent."
)
@click.option(
    "--advertise", metavar="HOST:PORT", help="Where others reach it, if not where it listens."
)
@click.option(
    "--join",
    multiple=True,
    metavar="HOST:PORT",
    help="Any running node of the cluster; also dns:NAME:PORT and srv:NAME. Repeatable.",
)
@click.option("--datacenter", help="Nodes of one data center share a ring; dc1 when absent.")
@click.option("--zone", help="What fails together inside the data center.")
@click.option("--weight", type=float, help="Share of the ring, 0.25 to 4; 1 when absent.")
@click.option(
    "--cluster-name",
    "cluster",
    help="Nodes of other clusters are strangers; ringfence when absent.",
)
@click.option("--rules", help="Rule file or directory.")
@click.option("--keys", help="Directory that `ringfence keys new` wrote.")
@click.option("--gateway", is_flag=True, help="Start `ringfence gateway` beside the node.")
@click.option(
    "--gateway-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Its settings file; see docs/gateway.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Operator's port (TCP): metrics, health, the live page; none when absent.",
)
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
    advertise: str | None,
    join: tuple[str, ...],
    datacenter: str | None,
    zone: str | None,
    weight: float | None,
    cluster: str | None,
    rules: str | None,
    keys: str | None,
    http: str | None,
    gateway: bool,
    gateway_config: Path | None,
    log_level: str,
) -> None:
    """Run a node until SIGTERM, then hand over and leave; SIGHUP reads rules and keys again.

    Nothing needs to be configured: `ringfence node` alone is a cluster of one on loopback, which
    others join by naming it.
    """
    from node.serve import serve

    flags = {
        "name": name,
        "listen": listen,
        "advertise": advertise,
        "join": list(join),
        "datacenter": datacenter,
        "zone": zone,
        "weight": weight,
        "cluster": cluster,
        "rules": rules,
        "keys": keys,
        "http": http,
    }
    settings = load_settings(config, flags=flags)
    with log_to_stderr(log_level):
        if not (gateway or gateway_config):
            trio.run(serve, settings)
            return
        from node.beside import serve_with_gateway
        from node.cli.gatewaying import require_gateway

        require_gateway()
        trio.run(serve_with_gateway, settings, gateway_config)
