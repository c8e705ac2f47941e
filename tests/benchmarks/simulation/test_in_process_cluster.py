"""Cluster in this process, for benchmarks with many members."""

import ringfence
from benchmarks.simulation.in_process_cluster import cluster_client
from ringfence.rules.loading.mapping import load_mapping

RULES = {
    "domain": "d",
    "descriptors": [{"key": "user", "rate_limit": {"requests_per_unit": 2, "unit": "hour"}}],
}


async def test_each_key_has_one_budget_on_every_member() -> None:
    async with cluster_client(20, load_mapping(RULES).rules, 100) as limiter:
        decisions = [
            [await limiter.check("d", {"user": f"u{number}"}) for _ in range(3)]
            for number in range(30)
        ]

    assert [[each.allowed for each in row] for row in decisions] == [[True, True, False]] * 30
    assert {each.source for row in decisions for each in row} == {ringfence.Source.OWNER}
