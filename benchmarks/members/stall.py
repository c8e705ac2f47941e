"""Test that each check is counted exactly once, although a node process is suspended.

Each of three node processes in turn is stopped (SIGSTOP) for 0.1 to 2 seconds while 100 checks of
its keys are in flight. Garbage collection and throttled containers have the same effect. Like a
gateway, the client asks a standby when the owner is late. After the process has resumed, the
counters of the nodes are compared with the decisions that the client received:

- `double_counted`: units counted beyond the checks that passed;
- `not_counted`: checks that a node admitted and that are not counted;
- `over_admitted`: checks that nodes admitted beyond the limit;
- `false_denials`: checks that were denied although the limit was not used up;
- `policy_share`: checks that no node answered in time, decided by `on_failure`.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import trio
from msgspec import Struct

from benchmarks.reporting.figure import Figure, figure
from hashring import NodeId
from node.demo.cluster import DemoCluster, running_cluster
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.connect import open_cluster
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import described
from ringfence.client.url import parse_url
from ringfence.wire import Source

__all__ = ["owned", "run"]

_RULES = """\
domain: stall
descriptors:
  - key: open
    rate_limit: {requests_per_unit: 100000, unit: day, algorithm: fixed_window}
  - key: window
    rate_limit: {requests_per_unit: 20, unit: day, algorithm: fixed_window}
  - key: log
    rate_limit: {requests_per_unit: 20, unit: day, algorithm: sliding_window_log}
  - key: bucket
    rate_limit: {requests_per_unit: 20, unit: day, algorithm: token_bucket}
"""
_LIMITS = {"open": 100_000, "window": 20, "log": 20, "bucket": 20}
_STALLS_S = (0.1, 0.3, 0.6, 1.2, 2.0)
_HEDGE_AFTER_S, _DEADLINE_S = 0.1, 0.25
"""Client settings of the gateway."""
_ASKED = 25
"""Checks in flight per key; 100 in all."""
_BEFORE = 5
"""Checks of each key that are decided and replicated before its owner is stopped."""
_REPLICATED_S = 0.3
_CALM_S = 1.0
"""Seconds until late answers, merges and refunds have ended."""
_WITHIN_S = 20.0
"""Seconds in which the client must reach all nodes again."""
_IN_RING = ("alive", "suspect")
_BY_NODES = (Source.OWNER, Source.STANDBY)
_FAULTS = ("double_counted", "not_counted", "over_admitted", "false_denials", "by_policy")


class _Found(Struct):
    """Number of checks in one stall, and numbers of wrong results by kind."""

    checks: int = 0
    double_counted: int = 0
    not_counted: int = 0
    over_admitted: int = 0
    false_denials: int = 0
    by_policy: int = 0

    def add(self, decisions: list[Decision], limit: int, used: int) -> None:
        """Compare the decisions for one key with the counter of that key."""
        passed = [each for each in decisions if each.allowed]
        admitted = len([each for each in passed if each.source in _BY_NODES])
        denied = len(decisions) - len(passed)
        self.checks += len(decisions)
        self.double_counted += max(0, used - len(passed))
        self.not_counted += max(0, admitted - used)
        self.over_admitted += max(0, admitted - limit)
        self.false_denials += max(0, min(denied, limit - len(passed)))
        self.by_policy += len([each for each in decisions if each.source not in _BY_NODES])


def run(rounds: int) -> Iterator[Figure]:
    """Stop each node for each duration in every round; each figure is the sum of a round."""
    found: list[list[_Found]] = []
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "rules.yaml"
        rules.write_text(_RULES, "utf-8")
        for number in range(rounds):
            found.append([each for seconds in _STALLS_S for each in _round(rules, seconds, number)])
    for fault in _FAULTS:
        sums = [float(sum(getattr(each, fault) for each in turn)) for turn in found]
        if fault == "by_policy":
            checks = [sum(each.checks for each in turn) for turn in found]
            shares = [part / whole for part, whole in zip(sums, checks, strict=True)]
            yield figure("stall.policy_share", "of checks", shares)
        else:
            yield figure(f"stall.{fault}", "checks a round", sums)


def _round(rules: Path, seconds: float, number: int) -> list[_Found]:
    """Create a new cluster and stop each of its nodes once.

    A node that is suspected three times in five minutes leaves the ring for a minute, so each
    duration needs a new cluster.
    """
    with running_cluster(rules) as nodes:
        names = sorted(nodes.processes)
        found = [trio.run(_stalled, nodes, name, seconds, number) for name in names]
        nodes.assert_running()
    return found


async def _stalled(nodes: DemoCluster, name: str, seconds: float, number: int) -> _Found:
    """Stop one node while checks of its keys are in flight; return the wrong results."""
    decisions: dict[str, list[Decision]] = {key: [] for key in _LIMITS}
    found = _Found()
    async with open_cluster(
        parse_url(nodes.url),
        denial_cache_size=0,
        use_leases=False,
        hedge_after=_HEDGE_AFTER_S,
        deadline=_DEADLINE_S,
    ) as cluster:
        limiter = Limiter(cluster)
        await _wait_all_in_ring(cluster, len(nodes.processes))
        values = {
            key: owned(cluster, "stall", key, name, f"{number}/{seconds}/{name}") for key in _LIMITS
        }

        async def ask(key: str) -> None:
            decisions[key].append(
                await limiter.check("stall", {key: values[key]}, timeout=_DEADLINE_S)
            )

        for key in _LIMITS:
            for _ in range(_BEFORE):
                await ask(key)
        await trio.sleep(_REPLICATED_S)
        pid = nodes.processes[name].pid
        os.kill(pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            for _ in range(_ASKED):
                for key in _LIMITS:
                    nursery.start_soon(ask, key)
            await trio.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        await trio.sleep(_CALM_S)
        for key, limit in _LIMITS.items():
            peeked = await limiter.peek("stall", {key: values[key]})
            assert peeked.remaining is not None
            found.add(decisions[key], limit, limit - peeked.remaining)
    return found


async def _wait_all_in_ring(cluster: Cluster, nodes: int) -> None:
    with trio.fail_after(_WITHIN_S):
        while len([row for row in cluster.members if row.state in _IN_RING]) < nodes:  # noqa: ASYNC110
            await trio.sleep(0.05)  # The client offers no event for this.


def owned(cluster: Cluster, domain: str, key: str, owner: str, salt: str) -> str:
    """Return a value for the descriptor key `key` such that the given node owns the counter."""
    routes = cluster.routes
    assert routes is not None
    for number in range(10_000):
        value = f"{salt}/{number}"
        [match] = cluster.rules.match(domain, described({key: value}))
        if match is not None and routes.owner(match.key) == NodeId(owner):
            return value
    raise AssertionError(f"node {owner} owns nothing")
