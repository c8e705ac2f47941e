"""Operator of the cluster, who reads the admin ports of all nodes.

The requests run the application of the admin port that ships, without its sockets.
"""

from collections import Counter
from typing import Any, TypeAlias

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from node.admin.app import AdminApp, Render
from node.admin.http_messages import AdminRequest, AdminResponse
from node.admin.throttle import Throttle
from ringfence import runtime
from simulations.world.hosts import Hosts
from simulations.world.operating.statistics import Published

__all__ = ["Operator", "Samples"]

Samples: TypeAlias = dict[tuple[str, ...], float]
"""Values of metrics by name and by the values of their labels, in the order of the label names."""
_PER_SECOND, _BURST = 100.0, 50
"""Rate limit of each admin port, as by default."""
_MOST_KEYS = 256
"""Most keys in one list of denied keys."""
_ATTEMPTS = 3
"""Attempts to read what a node requests from all members."""
_FRESH_S = 1.0
"""Seconds after which a node asks the members again."""


class Operator:
    """Operator with access to the admin port of each running node."""

    def __init__(self, hosts: Hosts, token: str) -> None:
        self._hosts = hosts
        self._headers = {b"host": b"127.0.0.1", b"authorization": f"Bearer {token}".encode()}
        self._apps: dict[str, AdminApp] = {}
        self._before: Counter[str] = Counter()

    def open_ports(self) -> None:
        """Open the admin port of each running node, which begins to count its decisions."""
        for host in self._hosts.running():
            assert host.node is not None
            throttle = Throttle(_PER_SECOND, _BURST)
            self._apps[host.name] = AdminApp(host.node, throttle, _render_at_once)
        self._before = self._counters()

    @property
    def names(self) -> list[str]:
        """Return the names of the nodes whose ports are open."""
        return [*self._apps]

    async def request(
        self, name: str, path: str, query: str = "", method: str = "GET", *, token: str = ""
    ) -> AdminResponse:
        """Send a request to the admin port of a node, by default with the operator's token."""
        headers = self._headers
        if token:
            headers = headers | {b"authorization": f"Bearer {token}".encode()}
        return await self._apps[name].respond(AdminRequest(method, path, query.encode(), headers))

    async def read(self, name: str, path: str, query: str = "") -> dict[str, Any]:
        """Return the JSON object that the admin port of a node answers; empty if it refuses."""
        response = await self.request(name, path, query)
        found: dict[str, Any] = msgspec.json.decode(response.body)
        return found if response.status == 200 else {}

    async def read_from_all(self, name: str, path: str, query: str = "") -> dict[str, Any]:
        """Return a JSON object for which a node asks all members.

        A node that sends rarely may first find several dead connections. The answer of a member may
        also come too late if the network lost a datagram.
        """
        found = await self.read(name, path, query)
        for _ in range(_ATTEMPTS - 1):
            if found.get("missing") == []:
                break
            await runtime.sleep(_FRESH_S)
            found = await self.read(name, path, query)
        return found

    async def read_metrics(self, name: str, only: str = "") -> Samples:
        """Return the metrics of a node whose names start with `only`: values by name and labels.

        The result is empty if the node refuses.
        """
        response = await self.request(name, "/metrics")
        if response.status != 200:
            return {}
        lines = response.body.decode().splitlines(keepends=True)
        text = "".join(line for line in lines if line.startswith(only))
        return {
            (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def read_statistics(self) -> Published:
        """Read what all nodes have counted since their ports are open."""
        listed = await self.read_from_all(self.names[0], "/v1/throttled", f"count={_MOST_KEYS}")
        rows, nodes = listed.get("keys", []), listed.get("nodes", {})
        published = Published(
            denied={row["key"]: (row["denied"], row["error"]) for row in rows},
            denials=listed.get("denied", -1),
            missing=[name for name in self.names if listed and name not in nodes],
        )
        for name in self._apps:
            samples = await self.read_metrics(name, only="ringfence_decisions_total{")
            for (_, result, rule, source), value in samples.items():
                published.decisions[rule, result, source] += int(value)
        published.counters = self._counters()
        published.counters.subtract(self._before)
        return published

    def _counters(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for node in self._hosts.nodes():
            found.update(node.queries.stats(1).counters)
        return found


async def _render_at_once(render: Render) -> AdminResponse:
    return render()
