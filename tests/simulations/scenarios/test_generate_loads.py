"""Generated loads: they match the limits of the rules, and use all kinds of requests."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

from ringfence.rules import parse_limit
from simulations.judging.allowed_loss import members_of
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Level, Load, Scenario


@cache
def cases() -> Sequence[Scenario]:
    return [generate_scenario(seed, "core") for seed in range(80)]


def loads() -> list[Load]:
    return [load for case in cases() for load in case.loads]


def test_every_generated_rule_has_a_load() -> None:
    for case in cases():
        rules = {line.split()[-1] for line in case.rules.splitlines() if "- key:" in line}
        used = {load.rule for load in case.loads} | {holds.rule for holds in case.holds}

        assert (
            rules - {"job", "world", "lent"} <= used <= rules | {"adhoc", "override", "override1"}
        )


def test_some_requests_are_peeks_charges_or_refunded_and_some_cost_more_than_one() -> None:
    for name in ("peeks", "charges", "refunds", "probes"):
        shares = [getattr(load, name) for load in loads()]

        assert 0 < sum(share > 0 for share in shares) < len(shares)
    assert any(load.also for load in loads())
    assert {1, 2, 3, 5} <= {cost for load in loads() for cost in load.costs}


def test_some_refunds_state_the_time_since_their_check() -> None:
    refunded = [load for load in loads() if load.refunds]

    assert {load.aged_refunds for load in refunded} == {False, True}
    assert {load.refund_after_s > 0 for load in refunded if load.aged_refunds} == {False, True}
    assert not any(load.aged_refunds for load in loads() if not load.refunds)


def test_a_quarter_of_the_loads_has_reservations_but_no_batches() -> None:
    reserving = [load for load in loads() if load.reservations]

    assert 0.15 < len(reserving) / len(loads()) < 0.35
    assert {load.settle_after_s > 0 for load in reserving} == {False, True}
    assert {load.batch for load in reserving} == {1}
    assert {load.cost_after for load in reserving} == {False, True}
    assert not any(load.cost_after and load.limit for load in reserving)


def test_some_requests_contain_their_own_limit() -> None:
    carrying = [load for load in loads() if load.limit]

    assert {load.overrides for load in carrying} == {False, True}
    assert len({load.limit for load in carrying}) > 10
    assert any(parse_limit(load.limit).first_hit for load in carrying)


def test_some_runs_have_batches_and_many_keys() -> None:
    assert any(load.batch > 1 and load.rule != "exact" for load in loads())
    assert any(load.keys >= 1000 for load in loads())
    assert all(load.shape != "attack" for load in loads() if load.batch > 1)


def test_hot_and_cold_keys_and_new_keys_are_requested() -> None:
    assert {load.shape for load in loads()} >= {"poisson", "zipf", "hot", "bursts", "attack"}


def test_calm_load_follows_the_calm_at_both_levels() -> None:
    levels: tuple[Level, ...] = ("core", "node")
    for case in [generate_scenario(1, level) for level in levels]:
        assert case.calm_load == 10
        assert case.calm_load_from == case.seconds + case.calm
        assert case.read_at == case.calm_load_from + 15


def test_a_scenario_without_calm_load_is_read_after_the_calm() -> None:
    case = Scenario("plain", "for a test", seconds=10, calm=5)

    assert case.calm_load_from == float("inf")
    assert case.read_at == 15


def test_members_of_one_host_are_in_one_zone_and_fail_together() -> None:
    shared = [case for case in cases() if case.processes > 1]
    pauses = [fault for case in shared for fault in case.faults if fault.verb == "pause"]

    assert len(shared) > 5
    for case in shared:
        sizes = Counter(members_of(case).values())
        assert len(sizes) == case.datacenters * case.zones
        assert set(sizes.values()) == {case.processes}
    assert pauses
    assert all(len(str(fault.args["node"]).split(",")) == 2 for fault in pauses)
