"""Changes of rules: new rules reach clients and forwarding nodes."""

import trio
from trio.testing import MockClock

from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import load_text
from tests.node.cluster import RULES, of, owned, world


async def test_new_rules_reach_clients_with_their_next_checks(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        for _ in range(2):
            await limiter.check("api", {"client": "x"})
        tighter = load_text(RULES.replace("requests_per_unit: 5", "requests_per_unit: 3")).rules
        added = load_text(
            RULES + "  - key: new\n    rate_limit: {unit: day, requests_per_unit: 1}\n"
        )

        for node in w.nodes.values():
            node.change_rules(RuleSet(tighter.contents, version=1))
        third, fourth = [await limiter.check("api", {"client": "x"}) for _ in range(2)]
        for node in w.nodes.values():
            node.change_rules(RuleSet(added.rules.contents, version=2))
        await limiter.check("api", {"client": "y"})
        await trio.sleep(1)
        new = [await limiter.check("api", {"new": "x"}) for _ in range(2)]

        assert of([third, fourth]) == [True, False]  # Spent units stay spent.
        assert of(new) == [True, False]
        assert limiter.rules.version == 2


async def test_restored_rules_with_an_older_date_reach_clients(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        tighter = load_text(RULES.replace("requests_per_unit: 5", "requests_per_unit: 1")).rules
        for node in w.nodes.values():
            node.change_rules(RuleSet(tighter.contents, version=50))
        await limiter.check("api", {"client": "y"})
        await trio.sleep(1)
        seen = limiter.rules

        for node in w.nodes.values():
            node.change_rules(RuleSet(w.rules.contents, version=7))
        await limiter.check("api", {"client": "y"})
        await trio.sleep(1)

        assert seen == tighter
        assert limiter.rules == w.rules


async def test_a_forwarding_node_applies_the_new_rules(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        for node in w.nodes.values():
            node.change_rules(RuleSet((), version=1))

        decision = await limiter.check("api", owned(w.rules, "client", "b"))

        assert decision.allowed
        assert w.count("b", "unknown_rule") > 0


async def test_a_rule_that_the_owner_does_not_have_yet_is_enforced(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        w.nodes["a"].change_rules(RuleSet(w.rules.contents, version=1))
        for name in ("b", "c"):
            w.nodes[name].change_rules(RuleSet())
        async with w.client("a") as limiter:
            client = owned(w.rules, "client", "b")

            decisions = [await limiter.check("api", client) for _ in range(6)]

            assert of(decisions) == [True] * 5 + [False]
