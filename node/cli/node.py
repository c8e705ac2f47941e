"""`ringfence node`: run one member of the cluster."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import trio

from node.cli.common import IntegerRange, log_to_stderr
from node.config.settings import MAX_PROCESSES, NodeSettings, load_settings

__all__ = ["node"]


def _not_empty(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Refuse an empty value, such as that of a shell variable that is not set."""
    if text == "":
        raise click.BadParameter("must not be empty; leave the option out for its default")
    return text


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file (docs/reference/node-settings). RINGFENCE_NODE_* and flags override it.",
)
@click.option(
    "--name", callback=_not_empty, help="Unique in the cluster; host and port when absent."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="UDP address to bind; 127.0.0.1:7101 when absent. A port alone is on 127.0.0.1.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Address that other nodes use, if it differs from --listen.",
)
@click.option(
    "--join",
    multiple=True,
    metavar="HOST:PORT",
    help="Any running node of the cluster; also dns:NAME:PORT and srv:NAME. Repeatable.",
)
@click.option("--datacenter", help="Nodes of one data center share a ring; dc1 when absent.")
@click.option("--zone", help="Failure domain inside the data center, such as a rack.")
@click.option("--weight", type=float, help="Share of the ring, 0.25 to 4; 1 when absent.")
@click.option(
    "--cluster-name",
    "cluster",
    help="Name of the cluster, ringfence when absent; nodes of clusters with other names are "
    "rejected. It is not an address: other commands take the address as --cluster URL.",
)
@click.option("--rules", callback=_not_empty, help="Rule file or directory.")
@click.option("--keys", callback=_not_empty, help="Directory that `ringfence keys new` wrote.")
@click.option("--gateway", is_flag=True, help="Start `ringfence gateway` beside the node.")
@click.option(
    "--gateway-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Its settings file; see docs/guides/gateway.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Operator's port (TCP): metrics, health, the live page; none when absent. A port alone "
    "is on 127.0.0.1, a host alone has the port 7190.",
)
@click.option(
    "--processes",
    type=IntegerRange(1, MAX_PROCESSES),
    metavar="N",
    help="Run N members on N ports from --listen on (docs/operate/multiple-processes).",
)
@click.option(
    "--check",
    is_flag=True,
    help="Validate settings, rules, keys and certificates, report errors, and exit.",
)
@click.option("--member", type=int, hidden=True, help="Index of the member, from its supervisor.")
@click.option("--sibling", "siblings", multiple=True, hidden=True, help="Address of a member.")
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
    processes: int | None,
    check: bool,
    member: int | None,
    siblings: tuple[str, ...],
    gateway: bool,
    gateway_config: Path | None,
    log_level: str,
) -> None:
    """Run a node until SIGTERM, then hand over and leave; SIGHUP reloads rules and keys.

    A node uses one core; with --processes N this command runs N nodes and restarts any that fails.

    It needs no configuration: `ringfence node` alone is a cluster of one on loopback, which other
    nodes join with --join.
    """
    flags: dict[str, object] = {
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
        "processes": processes,
    }
    settings = load_settings(config, flags=flags)
    with_gateway = gateway or gateway_config is not None
    if check:
        _check(settings, with_gateway, gateway_config)
        return
    if member is not None:
        from node.supervisor.member_plan import member_settings
        from node.supervisor.member_process import serve_member

        settings = member_settings(settings, member, siblings)
        with log_to_stderr(log_level, settings.name):
            trio.run(serve_member, settings)
        return
    with log_to_stderr(log_level):
        if settings.processes > 1:
            words = _words(flags, config, log_level)
            trio.run(_several, settings, words, with_gateway, gateway_config)
        else:
            trio.run(_one, settings, with_gateway, gateway_config)


def _check(settings: NodeSettings, with_gateway: bool, gateway_config: Path | None) -> None:
    """Validate the files that a node reads when it starts, and print a summary."""
    from node.serve import read_files
    from node.supervisor.member_plan import member_settings, operator_listeners, require_plan

    nodes = [settings]
    if settings.processes > 1:
        require_plan(settings)
        nodes = [member_settings(settings, index, []) for index in range(settings.processes)]
    counts = [len(read_files(each).rules.rules()) for each in nodes]
    if with_gateway:
        from node.cli.gateway import require_gateway
        from node.supervisor.gateway import check_gateway

        require_gateway()
        check_gateway(nodes, gateway_config, operator_listeners(settings))
    keys = f"keys from {settings.keys}" if settings.keys else "no keys"
    click.echo(f"node {settings.name} can start; rules: {counts[0]}, {keys}")


async def _one(settings: NodeSettings, with_gateway: bool, gateway_config: Path | None) -> None:
    from node.serve import serve

    if not with_gateway:
        await serve(settings)
        return
    from node.cli.gateway import require_gateway
    from node.supervisor.gateway import run_with_gateway
    from node.supervisor.member_plan import operator_listeners

    require_gateway()
    ports = operator_listeners(settings)
    await run_with_gateway(partial(serve, settings), [settings], gateway_config, ports)


async def _several(
    settings: NodeSettings, words: list[str], with_gateway: bool, gateway_config: Path | None
) -> None:
    from node.supervisor.member_plan import member_settings, operator_listeners
    from node.supervisor.supervisor import supervise

    if not with_gateway:
        await supervise(settings, words)
        return
    from node.cli.gateway import require_gateway
    from node.supervisor.gateway import run_with_gateway

    require_gateway()
    members = [member_settings(settings, index, []) for index in range(settings.processes)]
    start = partial(supervise, settings, words)
    await run_with_gateway(start, members, gateway_config, operator_listeners(settings))


def _words(flags: Mapping[str, object], config: Path | None, log_level: str) -> list[str]:
    """Return the command-line arguments of a member, without the gateway options that the
    supervisor uses."""
    words = ["node", "--log-level", log_level]
    words += ["--config", str(config)] if config is not None else []
    for name, value in flags.items():
        option = "--cluster-name" if name == "cluster" else f"--{name}"
        for each in value if isinstance(value, list) else [value]:
            words += [option, str(each)] if each is not None else []
    return words
