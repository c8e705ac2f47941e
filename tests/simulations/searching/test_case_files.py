from dataclasses import replace

import pytest

from ringfence.errors import ConfigError
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Fault, Load, Scenario
from simulations.searching.case_files import Case, format_case, parse_case


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_catalog_survives_its_case_file(name: str) -> None:
    case = Case(7, SCENARIOS[name], ("over_admission",))

    assert parse_case(format_case(case)) == case


@pytest.mark.parametrize("level", ["core", "node"])
def test_generated_scenarios_survive_their_case_files(level: str) -> None:
    for seed in range(25):
        scenario = generate_scenario(seed, "core" if level == "core" else "node")

        assert parse_case(format_case(Case(seed, scenario))).scenario == scenario


def test_a_case_file_has_no_defaults_and_readable_lists() -> None:
    load = Load("listed", rule="exact", args={"checks": "0.500 client-0 k1\n1.250 client-1 k1"})
    fault = Fault(1.5, "crash", None, {"node": "n2"})
    scenario = Scenario("mine", "about", loads=(load,), faults=(fault,))

    text = format_case(Case(3, scenario))

    assert "    checks: |-\n" in text
    assert "        0.500 client-0 k1\n        1.250 client-1 k1\n" in text
    assert "datacenters" not in text
    assert "until" not in text
    assert parse_case(text).scenario == scenario


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2", "must contain a seed and a scenario"),
        ("seed: 1", "scenario"),
        ("seed: one\nscenario: {name: a, about: b}", "Expected `int`"),
        ("seed: 1\nscenario: {name: a, about: b, colour: red}", "got scenario.colour"),
        ("seed: 1\nscenario: {name: a, about: b, loads: [{rules: x}]}", "scenario.loads.0.rules"),
        ("seed: 1\nscenario: {name: a, about: b, level: deep}", "Invalid enum value"),
    ],
)
def test_an_invalid_case_file_is_rejected(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="case file must contain") as error:
        parse_case(text)

    assert said in str(error.value)


def test_floats_keep_all_their_digits() -> None:
    scenario = replace(SCENARIOS["steady"], seconds=0.1 + 0.2, calm=1e-7)

    assert parse_case(format_case(Case(1, scenario))).scenario == scenario
