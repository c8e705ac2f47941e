"""Validation of whole scenarios, also those of case files that a user has edited."""

from typing import Any

import pytest
from msgspec.structs import replace

from ringfence.errors import ConfigError
from simulations.running import run_scenario
from simulations.scenarios.bounds import BOUNDS
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.rule_changes import apply_settings, parse_fault
from simulations.scenarios.scenario import Fault, Holds, Load, Network, Scenario
from simulations.searching.case_files import parse_case
from simulations.world.validation import InvalidScenario, validated

STEADY, CRASH = SCENARIOS["steady"], SCENARIOS["node-crash"]
CASE = """\
seed: 1
scenario:
  name: mine
  level: node
  datacenters: 2
  nodes: 4
  seconds: 5
  calm: 2
  rules: |
    domain: sim
    descriptors:
      - key: client
        rate_limit: {unit: minute, requests_per_unit: 12, algorithm: token_bucket}
      - key: job
        rate_limit: {period: 20s, requests_per_unit: 2, algorithm: concurrency}
      - key: free
        rate_limit: {unlimited: true}
  loads:
    - {per_second: 30, keys: 10}
  holds:
    - {rule: job}
  faults:
    - {at: 1, verb: crash, until: 2, args: {node: n1}}
"""


def test_a_case_file_without_a_description_is_valid() -> None:
    assert parse_case(CASE).scenario.about == ""


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("name: mine", "name: ../../zz", 3, "name must be printable text without / and"),
        ("seed: 1", "seed: -3", 1, "seed must be an integer of at least 0, got -3"),
        ("calm: 2", "calm: .nan", 8, "calm must be a number from 1 to 86400, got nan"),
        ("seconds: 5", "seconds: -5", 7, "seconds must be a number from 1 to 86400, got -5.0"),
        ("nodes: 4", "nodes: 9999999", 6, "nodes must be an integer from 1 to 5000"),
        ("nodes: 4", "nodes: 1", 6, "nodes must be at least 2, one per data center, got 1; add"),
        ("level: node", "zones: 0", 4, "zones must be an integer from 1 to 30, got 0"),
        ("level: node", "network: {loss: 1}", 4, "network.loss must be a number from 0 to 0.9"),
        ("level: node", "network: {latency: moon}", 4, "latency preset must be one of lan, near"),
        ("at: 1", "at: .nan", 23, "faults.0: begin of a fault must be seconds of at least 0"),
        ("at: 1", "at: -5", 23, "faults.0: begin of a fault must be seconds of at least 0"),
        ("until: 2", "until: .inf", 23, "end of a fault must not be before its begin"),
        ("verb: crash", "verb: flood", 23, "verb of a fault must be one of crash, leave"),
        ("node: n1", "node: n9", 23, "must be n1 to n4, got n9; add hosts, or change the fault"),
        ("node: n1", "moves: 2", 23, "moves of crash must be 1, got 2"),
        ("keys: 10", "keys: 0", 19, "loads.0.keys must be an integer from 1 to 1000000, got 0"),
        ("per_second: 30", "per_second: -1", 19, "loads.0.per_second must be a number from 0 to"),
        ("per_second: 30", "per_second: 1000000", 19, "from 0 to 100000, got 1000000.0"),
        ("keys: 10", "charges: .nan", 19, "loads.0.charges must be a number from 0 to 1, got nan"),
        ("keys: 10", "costs: [1, 0]", 19, "loads.0.costs.1 must be an integer from 1"),
        ("keys: 10", "shape: zigzag", 19, "load shape must be one of poisson, bursts"),
        ("keys: 10", "shape: log, args: {lines: x}", 19, "an integer of at least 1, got 'x'"),
        ("keys: 10", "shape: log, args: {file: none}", 19, "no such file; give the path"),
        ("keys: 10", "shape: attack, batch: 2", 19, "loads.0.batch must be 1 with shape attack"),
        ("keys: 10", "limit: 5/minute, batch: 2", 19, "loads.0.batch must be 1 with limit"),
        (
            "keys: 10",
            "limit: 5/minute, cost_after: true",
            19,
            "cost_after must be false with limit",
        ),
        ("keys: 10", "settle_after_s: 90", 19, "must be at most half of calm, got 90; use up to"),
        ("keys: 10", "limit: 5/minute, also: client", 19, "also must be empty with an ad-hoc"),
        ("keys: 10", "limit: 5/moon", 19, "unknown unit; did you mean 'month'"),
        ("keys: 10", "rule: nope", 19, "other than concurrency in the rules of domain sim"),
        ("keys: 10", "rule: job", 19, "which are client; got 'job'; correct it"),
        ("keys: 10", "also: free", 19, "loads.0.also must be a key with a limit"),
        ("rule: job", "rule: client", 21, "which are job; got 'client'"),
        ("domain: sim", "domain: shop", 9, "domain of rules must be sim, got shop; correct it"),
        ("key: client", "key: foo", 19, "which are foo; got 'client'"),
        ("unit: minute", "unit: eon", 9, "line 4 of rules: sim > client > rate_limit: unknown"),
    ],
)
def test_a_wrong_value_of_a_case_file_is_named_with_its_line(
    before: str, after: str, line: int, said: str
) -> None:
    assert before in CASE
    with pytest.raises(ConfigError) as refused:
        parse_case(CASE.replace(before, after), "mine.yaml")

    [message] = str(refused.value).splitlines()
    assert message.startswith(f"mine.yaml:{line}: ")
    assert said in message


@pytest.mark.parametrize("rules", ["", "  rules: ' '\n"])
def test_a_case_file_without_rules_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_case(f"seed: 1\nscenario:\n  name: x\n{rules}", "mine.yaml")

    assert "rules must be the text of a rule file with domain sim, got no text; write" in str(
        refused.value
    )


def test_keys_of_a_listed_batch_must_have_numbers() -> None:
    load = Load("listed", rule="exact", batch=2, args={"checks": "1.0 client-0 other"})

    with pytest.raises(InvalidScenario, match="must be k and a number, got 'other'"):
        validated(replace(STEADY, loads=(load,)))


@pytest.mark.parametrize("kind", BOUNDS)
def test_bounds_exist_for_all_numbers(kind: type) -> None:
    assert kind in (Scenario, Load, Holds, Network)
    numbers = [name for name, type_ in kind.__annotations__.items() if type_ in (int, float)]

    assert sorted(BOUNDS[kind]) == sorted(numbers)


@pytest.mark.parametrize("level", ["core", "node"])
def test_generated_scenarios_are_valid(level: str) -> None:
    for seed in range(25):
        scenario = generate_scenario(seed, "core" if level == "core" else "node")

        assert validated(scenario) is scenario


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crash@1 node=n9", "must be n1 to n5, got n9"),
        ("cut@1-2 node=n1 from=n9", "must be n1 to n5, got n9"),
        ("crash@1 datacenter=dc2", "must be dc1, got dc2"),
        ("crash@1 zone=z2", "must be z1, got z2"),
        ("crash@1 zone=z1,z1", "must be z1, got z1,z1"),
    ],
)
def test_a_fault_of_an_unknown_host_is_rejected(fault: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validated(replace(CRASH, faults=(parse_fault(fault),)))


@pytest.mark.parametrize(
    ("faults", "hosts", "said"),
    [
        (["crash@5"], [], "fault 'crash@5' must leave a node of dc1 at the end of the run at 50 s"),
        (["leave@5"], [], "got none; give the fault fewer hosts, as in node=n1, or an earlier end"),
        (["crash@5-50"], [], "'crash@5-50' must leave a node of dc1"),
        (["crash@5 zone=z1", "leave@7-50 zone=z2"], ["zones=2"], "'leave@7-50 zone=z2' must leave"),
        (["crash@5 node=n2,n3", "crash@1 node=n1"], [], "'crash@5 node=n2,n3' must leave"),
        (["crash@5-15", "leave@20"], [], "'leave@20' must leave a node of dc1"),
        (["crash@5 datacenter=dc2"], ["nodes=4", "datacenters=2"], "must leave a node of dc2"),
    ],
)
def test_faults_must_leave_a_node_of_each_data_center(
    faults: list[str], hosts: list[str], said: str
) -> None:
    scenario = apply_settings(STEADY, hosts)

    with pytest.raises(InvalidScenario) as refused:
        validated(replace(scenario, faults=tuple(map(parse_fault, faults))))

    assert said in str(refused.value)


@pytest.mark.parametrize(
    "faults",
    [
        ["crash@5-49"],
        ["crash@5 node=n1,n2"],
        ["pause@5", "cut@5 node=n1"],
        ["crash@5", "crash@20-30 node=n3"],
        ["crash@5 node=n1,n2", "leave@8-20 node=n3"],
    ],
)
def test_faults_may_end_all_nodes_if_one_starts_again(faults: list[str]) -> None:
    scenario = replace(STEADY, faults=tuple(map(parse_fault, faults)))

    assert validated(scenario) is scenario


def test_a_case_file_that_ends_all_nodes_is_named_with_its_line() -> None:
    text = CASE.replace("until: 2, args: {node: n1}", "args: {datacenter: dc1}")

    with pytest.raises(ConfigError, match=r"^mine.yaml:23: fault 'crash@1 datacenter=dc1' must"):
        parse_case(text, "mine.yaml")


def test_every_data_center_needs_a_node_and_a_known_region() -> None:
    with pytest.raises(ConfigError, match="nodes must be at least 3, one per data center, got 2"):
        validated(replace(STEADY, nodes=2, datacenters=3))
    with pytest.raises(
        ConfigError,
        match=r"6 data centers: data center of preset 'regions' must be one of .*, got 'dc6'",
    ):
        validated(apply_settings(STEADY, ["nodes=6", "datacenters=6", "latency=regions"]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": "3"}, "nodes must be of type int, got '3'; correct it"),
        ({"nodes": True}, "nodes must be of type int, got True"),
        ({"level": "both"}, "level must be of type typing.Literal['core', 'node'], got 'both'"),
        ({"name": None}, "name must be of type str, got None"),
        ({"name": "a\\b"}, "name must be printable text without / and \\, got 'a"),
        ({"name": "a\nb"}, "choose a name such as my-scenario"),
        ({"network": None}, "network must be of type"),
        ({"loads": None}, "loads must be of type tuple[simulations.scenarios.scenario.Load, ...]"),
        ({"loads": ({"keys": 3},)}, "loads.0 must be a Load, got {'keys': 3}"),
        ({"loads": (Load(keys="3"),)}, "loads.0.keys must be of type int, got '3'"),
        ({"holds": (Holds(rule=3),)}, "holds.0.rule must be of type str, got 3"),
        ({"faults": (Fault("1", "crash"),)}, "faults.0.at must be of type float, got '1'"),
        ({"faults": (Fault(1, "crash", args={"node": None}),)}, "faults.0.args must be of type"),
    ],
)
def test_values_of_a_wrong_type_from_python_are_named(changes: Any, said: str) -> None:
    with pytest.raises(InvalidScenario) as refused:
        validated(replace(STEADY, **changes))

    assert said in str(refused.value)


@pytest.mark.parametrize("value", [None, "steady", Load()])
def test_only_a_scenario_can_be_validated(value: Any) -> None:
    with pytest.raises(InvalidScenario, match="scenario must be a Scenario, got "):
        validated(value)


def test_integers_as_seconds_and_lists_of_loads_are_valid() -> None:
    scenario: Any = replace(STEADY, seconds=10, loads=[Load()])

    assert validated(scenario) is scenario


def test_a_scenario_is_validated_before_its_run() -> None:
    with pytest.raises(InvalidScenario, match="nodes must be an integer from 1 to 5000, got 0"):
        run_scenario(replace(STEADY, nodes=0), 1)
