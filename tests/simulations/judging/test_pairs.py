"""Pairs of features and faults: when they meet, and that generated runs can meet all of them."""

import pytest

from ringfence.rules.loading.yaml_files import load_text
from simulations.judging.pairs import (
    Usage,
    features_of_rule,
    pair_name,
    pairs_met,
    wanted_pairs,
)
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.rule_changes import parse_fault
from simulations.scenarios.scenario import Scenario
from simulations.world.named_rules import NamedRules

QUEUE = frozenset(("leaky_bucket", "queue"))


def met(at: float, *faults: str, features: frozenset[str] = QUEUE, dc: str = "dc1") -> set[str]:
    """Return the pairs of a run in which one request used some features."""
    usage = Usage()
    usage.add(features, dc, at)
    case = Scenario(
        "pairs",
        "for a test",
        nodes=4,
        datacenters=2,
        faults=tuple(parse_fault(each) for each in faults),
    )
    return pairs_met(usage, case)


def test_features_of_one_request_meet() -> None:
    assert met(1.0) == {"leaky_bucket x queue"}


@pytest.mark.parametrize(("at", "is_met"), [(4.9, False), (5.1, True), (8.9, True), (9.1, False)])
def test_a_feature_meets_a_fault_only_while_it_is_active(at: float, is_met: bool) -> None:
    assert ("crash x queue" in met(at, "crash@5-8 node=n1")) is is_met


def test_a_feature_meets_no_fault_of_another_data_center() -> None:
    assert "crash x queue" not in met(6, "crash@5-8 node=n1", dc="dc2")
    assert "loss x queue" in met(6, "loss@5-8 share=0.1", dc="dc2")


def test_a_limit_of_all_data_centers_meets_the_faults_of_each() -> None:
    shared = frozenset(("global", "token_bucket"))

    assert "crash x global" in met(6, "crash@5-8 node=n1", features=shared, dc="dc2")


def test_faults_meet_if_they_overlap_in_a_data_center() -> None:
    pair = "cut_one_way x pause"

    assert pair in met(1, "pause@2-5 node=n1", "cut@3-6 node=n3 one_way=1")
    assert pair not in met(1, "pause@2-5 node=n1", "cut@8-9 node=n3 one_way=1")
    assert pair not in met(1, "crash@2-5 node=n1", "crash@3-6 node=n2")


def test_impossible_pairs_are_not_wanted() -> None:
    wanted = wanted_pairs()

    assert not wanted & {
        pair_name(*pair)
        for pair in (
            *(("queue", "token_bucket"), ("calendar", "sliding_window"), ("adhoc", "shadow")),
            *(("shadow", "quota"), ("split", "queue"), ("concurrency", "peek")),
        )
    }
    assert "concurrency x crash" in wanted


def test_a_few_generated_runs_can_meet_almost_all_pairs() -> None:
    """Every load of a run is taken to use its features during the whole load."""
    found: set[str] = set()
    for seed in range(150):
        case = generate_scenario(seed, "core")
        found |= pairs_met(_possible_usage(case), case)

    assert len(found) > 0.93 * len(wanted_pairs())


def _possible_usage(case: Scenario) -> Usage:
    usage = Usage()
    rules = NamedRules(load_text(case.rules).rules, case.loads).limited()
    hosts = ["processes"] if case.processes > 1 else []
    found = {frozenset(["concurrency", *hosts])} if case.holds else set()
    for load in case.loads:
        kinds = ["", *(["cost"] if load.costs else []), *(["probe"] if load.probes else [])]
        kinds += ["bounded_refund"] if load.refunds and case.bounded_refunds else []
        kinds += ["batch"] if load.batch > 1 else []
        kinds += [name for name in ("peek", "charge", "refund") if getattr(load, f"{name}s", 0) > 0]
        hot = "hot_key" if load.shape in ("hot", "zipf") else ""
        keys = ["", hot, "new_key" if load.shape == "attack" else ""]
        for name in load.names:
            source = ("override" if load.overrides else "adhoc") if name in load.limits else ""
            several = "several_overrides" if source and len(load.limits) > 1 else ""
            host = "processes" if case.processes > 1 else ""
            always = features_of_rule(rules[name]) | {source, several, host}
            always |= {"group"} if load.also else set()
            found |= {always | {kind, key} for kind in kinds for key in keys}
    for features in found:
        for number in range(case.datacenters):
            for at in range(int(case.seconds)):
                usage.add(frozenset(features) - {""}, f"dc{number + 1}", at)
    return usage
