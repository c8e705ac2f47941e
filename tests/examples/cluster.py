"""Three nodes and a gateway beside each, as the examples have them, on ports that are free."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hashring import Member, NodeId, Ring, shard_of
from ringfence.rules import Descriptor, RuleSet
from ringfence.rules.loading.yaml_files import load_path
from tests.node.end_to_end.test_serve import NodeProcess, started
from tests.ringfence.gateway.processes import Gateway, gateway

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("a", "b", "c")
RING = Ring.of(Member(NodeId(name)) for name in NAMES)


@dataclass(frozen=True)
class Cluster:
    nodes: Mapping[str, NodeProcess]
    gateways: Mapping[str, Gateway]
    rules: RuleSet

    def kill(self, name: str) -> None:
        """End a host as a power failure would: its node and its gateway."""
        for process in (self.gateways[name].process, self.nodes[name].process):
            process.kill()
            process.wait()

    def clients(self, domain: str, key: str, count: int) -> dict[tuple[str, ...], list[str]]:
        """Names of clients by who is owner and standby of their counters, `count` of each."""
        found: dict[tuple[str, ...], list[str]] = {}
        number = 0
        while len(found) < 6 or min(map(len, found.values())) < count:
            name = f"client-{number}"
            number += 1
            [match] = self.rules.match(domain, [Descriptor(((key, name),))])
            assert match is not None
            who = _two(match.key)
            found.setdefault(who, []).append(name)
        return {who: names[:count] for who, names in found.items()}


def _two(key: bytes) -> tuple[str, ...]:
    shard = shard_of(key)
    return (str(RING.owner(shard)), str(RING.standby(shard)))


@contextmanager
def cluster(directory: Path, rules: Path, *flags: str) -> Iterator[Cluster]:
    """Start it; `flags` go to each gateway."""
    reported = {name: ("--name", name, "--rules", str(rules)) for name in NAMES}
    with ExitStack() as stack:
        nodes = stack.enter_context(started(directory, reported))
        gateways = {
            name: stack.enter_context(gateway(directory, node.url, *flags, ready=False))
            for name, node in nodes.items()
        }
        for each in gateways.values():
            each.wait_ready()
        yield Cluster(nodes, gateways, load_path(rules).rules)
