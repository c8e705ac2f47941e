"""Command line of an operator whose commands query the simulated cluster.

The commands are those that ship: their arguments, queries and output. Only the connection is
simulated, and the output goes into strings.
"""

import json
from io import StringIO
from typing import Any

from click import ClickException
from msgspec import Struct

from node.cli.cluster.check import check
from node.cli.cluster.cluster_command import ClusterCommand
from node.cli.cluster.leave import leave
from node.cli.cluster.members import members
from node.cli.cluster.throttled import throttled
from node.cli.cluster.why import why
from node.cli.command import exit_status
from node.cli.common import EXIT_WRONG_INPUT, Output
from ringfence.client.cluster.cluster import Cluster
from ringfence.errors import RingfenceError
from simulations.world.hosts import Client, Host
from simulations.world.world import World

__all__ = ["CommandLine", "Ran"]

_COMMANDS = {each.name: each for each in (check, leave, members, throttled, why)}


class Ran(Struct):
    """Result of a command that has ended."""

    status: int
    out: str
    err: str

    @property
    def row(self) -> dict[str, Any]:
        """Return the JSON object that the command printed; empty if it failed."""
        found: dict[str, Any] = json.loads(self.out) if self.out else {}
        return found

    @property
    def lines(self) -> list[list[str]]:
        """Return the words of each printed line."""
        return [line.split() for line in self.out.splitlines()]


class CommandLine:
    """Command line with the address of one node and a token for everything."""

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self._host = host
        self._clients: dict[bool, Client] = {}

    async def run(self, *words: str, cluster: Cluster | None = None) -> Ran:
        """Run a command; `cluster` replaces its client."""
        out, err, status = StringIO(), StringIO(), 0
        try:
            command = _COMMANDS[words[0]]
            assert isinstance(command, ClusterCommand)
            host, port = self._host.address
            query = command.query_of([*words[1:], "--cluster", f"ringfence://{host}:{port}"])
            cluster = cluster or (await self.client(ask_owners=query.ask_owners)).cluster
            query.show(await query.ask(cluster), Output(out, err))
        except SystemExit as end:
            status = int(end.code or 0)
        except ClickException as error:
            status = EXIT_WRONG_INPUT
            err.write(error.message)
        except RingfenceError as error:
            status = exit_status(error)
            err.write(str(error))
        return Ran(status, out.getvalue(), err.getvalue())

    async def client(self, *, ask_owners: bool) -> Client:
        """Return the client of the commands that ask the owner of each key, or of the others."""
        if ask_owners not in self._clients:
            connected = await self._world.connect_command(self._host, ask_owners=ask_owners)
            self._clients[ask_owners] = connected
        return self._clients[ask_owners]
