"""Groups of descriptors that several nodes decide."""

import pytest
import trio
from trio.testing import MockClock

from hashring import shard_of
from node.requests.request_parts import Part
from ringfence.limiter import Code
from ringfence.rules import Descriptor, RuleSet, parse_limit
from ringfence.wire import Batch, Op, Request
from tests.node.cluster import NAMES, RULES, counter, of, owned, ring_of, world


async def test_descriptors_of_several_owners_are_charged_all_or_none(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        both = [owned(w.rules, "client", "a"), owned(w.rules, "tenant", "b")]
        for only in (False, True):
            async with w.client("c", only=only) as limiter:
                await limiter.reset("api", both)

                decisions = [await limiter.check("api", both) for _ in range(7)]
                await trio.sleep(0.1)  # until the refunds have arrived

                assert of(decisions) == [True] * 5 + [False] * 2
                assert (await limiter.peek("api", both[1])).remaining == 95


SHADOWED = (
    RULES
    + """
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: fixed_window}
"""
)


@pytest.mark.parametrize("shadow_at", ["a", "b"])
@pytest.mark.parametrize("seed", ["a", "c"])
async def test_a_shadow_rule_over_its_limit_denies_no_group(
    autojump_clock: MockClock, shadow_at: str, seed: str
) -> None:
    async with world(rules=SHADOWED) as w, w.client(seed, only=True) as limiter:
        both = [owned(w.rules, "client", "a"), owned(w.rules, "shadow", shadow_at)]

        decisions = [await limiter.check("api", both) for _ in range(6)]

        assert of(decisions) == [True] * 5 + [False]
        assert [decision.statuses[0].remaining for decision in decisions] == [4, 3, 2, 1, 0, 0]


async def test_a_shadow_rule_over_its_limit_denies_no_group_of_two_owners(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=SHADOWED) as w:
        keys = [
            counter(w.rules, name, owned(w.rules, name, owner)[name])
            for name, owner in (("client", "a"), ("shadow", "b"))
        ]
        codes, remaining = [], []
        for seq in range(1, 4):
            batch = Batch(Op.CHECK, keys, [1, 1], [2])
            request = Request(seq, 0, 500, 0, False, Batch(Op.CHECK, keys, [1, 1], [2]))
            results = await w.nodes["c"].handler.decide(request, Part(None, batch))
            assert results is not None
            codes.append(results.outcomes.codes)
            remaining.append(results.outcomes.remaining[0])

        assert codes == [[Code.ALLOWED, Code.ALLOWED], *[[Code.ALLOWED, Code.DENIED]] * 2]
        assert remaining == [4, 3, 2]


async def test_a_denied_group_through_another_node_leaves_no_charge(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("c", only=True) as limiter:
        exhausted = owned(w.rules, "client", "a")
        await limiter.check("api", exhausted, 5)
        others = [owned(w.rules, "tenant", name, 3) for name in NAMES]

        decision = await limiter.check("api", [*others, exhausted], 1)
        await trio.sleep(0.1)

        assert not decision.allowed
        peeks = [await limiter.peek("api", other) for other in others]
        assert [peek.remaining for peek in peeks] == [100] * 3


def limited(rules: RuleSet, key: str, limit: str, owner: str) -> Descriptor:
    """Return a descriptor with a limit of its own, whose counter `owner` has."""
    for number in range(200):
        descriptor = Descriptor(((key, str(number)),), limit=parse_limit(limit))
        [match] = rules.match("api", [descriptor])
        assert match is not None
        if ring_of(NAMES).owner(shard_of(match.key)) == owner:
            return descriptor
    raise AssertionError(f"{owner} has none of 200 keys")


async def test_a_request_with_two_limits_of_its_own_is_decided_by_two_owners(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("c") as limiter:
        both = [
            limited(w.rules, "client", "2/minute fixed_window", "a"),
            limited(w.rules, "tenant", "9/hour", "b"),
        ]

        decisions = [await limiter.check("api", both) for _ in range(3)]
        await trio.sleep(0.1)  # Time for the refund of the denied request.

        assert of(decisions) == [True, True, False]
        assert [status.limit for status in decisions[0].statuses] == [2, 9]
        assert (await limiter.peek("api", both[1:])).remaining == 7
