"""Generated rule files: what they contain, and that nodes accept them."""

from collections import Counter

import pytest

from ringfence.limiter import Algorithm, Calendar
from ringfence.rules import OnFailure, Rule
from ringfence.rules.loading.yaml_files import load_text
from simulations.scenarios.generate_rules import generate_rules
from simulations.scenarios.seeds import stream


def generated(datacenters: int, seeds: int = 150) -> list[Rule]:
    """Return the rules with drawn limits of many seeds."""
    files = [generate_rules(stream(seed, "rules"), datacenters) for seed in range(seeds)]
    rules = [rule for text in files for rule in load_text(text).rules.rules()]
    return [rule for rule in rules if rule.path[-1][0].startswith("r")]


def limits(rules: list[Rule], algorithm: Algorithm) -> list[object]:
    return [rule.limit for rule in rules if rule.limit and rule.limit.algorithm is algorithm]


@pytest.mark.parametrize("datacenters", [1, 2, 3])
def test_nodes_accept_every_generated_file(datacenters: int) -> None:
    assert len(generated(datacenters)) >= 300


def test_the_default_algorithm_is_the_most_frequent() -> None:
    counts = Counter(rule.limit.algorithm for rule in generated(1) if rule.limit)

    assert counts.most_common(1)[0][0] is Algorithm.SLIDING_WINDOW
    assert set(counts) == set(Algorithm) - {Algorithm.CONCURRENCY}


def test_every_option_is_generated() -> None:
    rules = generated(1) + generated(2)
    found = [rule.limit for rule in rules if rule.limit is not None]

    assert {limit.slots for limit in found} >= {1, 2, 5, 10}
    assert {limit.queue for limit in found} == {False, True}
    assert {limit.calendar for limit in found} == {None, *Calendar}
    assert len({limit.timezone for limit in found}) == 4
    assert {limit.soft_permille for limit in found} == {0, 100, 500}
    buckets = [limit for limit in found if limit.is_bucket]
    assert any(limit.bucket_size > limit.amount for limit in buckets)
    assert any(limit.bucket_size < limit.amount for limit in buckets)
    assert {rule.on_failure for rule in rules} == set(OnFailure)
    assert {rule.scope for rule in rules} == {"datacenter", "global", "split", "home"}
    for flag in ("shadow", "quota", "leases"):
        assert {getattr(rule, flag) for rule in rules} == {False, True}


def test_most_limits_can_be_exceeded_within_seconds() -> None:
    found = [rule.limit for rule in generated(1) if rule.limit is not None]

    assert sum(limit.period <= 10 for limit in found) > len(found) / 2
    assert any(limit.period >= 86_400 for limit in found)
