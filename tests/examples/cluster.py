"""Cluster of three nodes, each with a gateway, configured as in examples/, on free ports."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from hashring import Member, NodeId, Ring, shard_of
from ringfence.client.connect import open_cluster
from ringfence.client.url import parse_url
from ringfence.rules import Descriptor, RuleSet
from ringfence.rules.loading.yaml_files import load_path
from tests.node.end_to_end.test_serve import NodeProcess, started
from tests.ringfence.gateway.processes import Gateway, fetch, gateway, until

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("a", "b", "c")
_UNDECIDED = re.compile(
    r'^ringfence_gateway_(?:decisions_total{result="allowed",source="(?:policy|shed)"}'
    r"|refusals_total{.*}) (.*)$",
    re.MULTILINE,
)
RING = Ring.of(Member(NodeId(name)) for name in NAMES)


@dataclass(frozen=True)
class Cluster:
    nodes: Mapping[str, NodeProcess]
    gateways: Mapping[str, Gateway]
    rules: RuleSet

    def kill(self, name: str) -> None:
        """Kill a node and its gateway with all workers, as a power failure of their host would."""
        lost_gateway, lost_node = self.gateways[name], self.nodes[name].process
        for pid in lost_gateway.pids:
            os.kill(pid, signal.SIGKILL)
        lost_node.kill()
        lost_gateway.process.wait()
        lost_node.wait()

    def undecided(self, *names: str) -> int:
        """Return how many checks these gateways passed without a decision of a node.

        The failure policy allowed them, or the gateway refused the call.
        """
        metrics = "".join(
            fetch(f"{self.gateways[each].url}/metrics").body.decode() for each in names
        )
        return sum(int(float(count)) for count in _UNDECIDED.findall(metrics))

    def wait_copied(self) -> None:
        """Wait until the standbys have acknowledged the replicas of all counters."""
        until(lambda: not any(trio.run(self._copy_ages)))

    async def _copy_ages(self) -> list[int]:
        async with open_cluster(parse_url(self.nodes[NAMES[0]].url)) as cluster:
            rows = await cluster.admin.all_stats()
        return [1 if counters is None else counters["copy_age_ms"] for _, counters in rows]

    def clients(self, domain: str, key: str, count: int) -> dict[tuple[str, ...], list[str]]:
        """Return `count` names of clients for each pair of owner and standby of their counters."""
        found: dict[tuple[str, ...], list[str]] = {}
        number = 0
        while len(found) < 6 or min(map(len, found.values())) < count:
            name = f"client-{number}"
            number += 1
            [match] = self.rules.match(domain, [Descriptor(((key, name),))])
            assert match is not None
            nodes = _owner_and_standby(match.key)
            found.setdefault(nodes, []).append(name)
        return {nodes: names[:count] for nodes, names in found.items()}


def _owner_and_standby(key: bytes) -> tuple[str, ...]:
    shard = shard_of(key)
    return (str(RING.owner(shard)), str(RING.standby(shard)))


@contextmanager
def cluster(directory: Path, rules: Path, *flags: str) -> Iterator[Cluster]:
    """Start the cluster; pass `flags` to each gateway."""
    node_flags = {name: ("--name", name, "--rules", str(rules)) for name in NAMES}
    with ExitStack() as stack:
        nodes = stack.enter_context(started(directory, node_flags))
        gateways = {
            name: stack.enter_context(gateway(directory, node.url, *flags, ready=False))
            for name, node in nodes.items()
        }
        for started_gateway in gateways.values():
            started_gateway.wait_ready()
        yield Cluster(nodes, gateways, load_path(rules).rules)
