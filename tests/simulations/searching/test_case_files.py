import re
from pathlib import Path

import pytest
from msgspec.structs import fields, replace

from ringfence.errors import ConfigError
from simulations.scenarios.catalog import RULES, SCENARIOS
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Fault, Load, Scenario
from simulations.searching.case_files import Case, format_case, parse_case, read_case


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
    scenario = Scenario("mine", "about", rules=RULES, loads=(load,), faults=(fault,))

    text = format_case(Case(3, scenario))

    assert "    checks: |-\n" in text
    assert "        0.500 client-0 k1\n        1.250 client-1 k1\n" in text
    assert "datacenters" not in text
    assert "until" not in text
    assert parse_case(text).scenario == scenario


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", "", "case file must be a mapping, got empty"),
        ("seed: 1", ":1", "case file must contain scenario, got seed"),
        ("sed: 1\nscenario: {name: a}", ":1", "must contain seed, got sed, scenario"),
        ("{}", ":1", "case file must contain seed, got nothing"),
        ("seed: 1\nscenario: 2", ":2", "scenario must be a mapping, got an integer"),
        ("seed: 1\nscenario: {level: core}", ":2", "scenario must contain name, got level"),
        ("seed: one\nscenario: {name: a}", ":1", "seed must be an integer, got a text"),
        ("seed: 1\ncolour: red\nscenario: {name: a}", ":2", "seed, scenario, violates, got 'col"),
        ("seed: 1\nscenario:\n  name: a\n  colour: red", ":4", "field of scenario must be one of"),
        (
            "seed: 1\nscenario:\n  name: a\n  loads:\n    - keys: 1\n      rules: x",
            ":6",
            "field of scenario.loads.0 must be one of shape, per_second",
        ),
        (
            "seed: 1\nscenario:\n  name: a\n  faults:\n  - {at: 1, verb: crash, args: {node: []}}",
            ":5",
            "scenario.faults.0.args must be an integer or a number or a text, got a list",
        ),
        (
            "seed: 1\nscenario: {name: a, level: deep}",
            ":2",
            "scenario.level must be core or node, got 'deep'",
        ),
        (
            "seed: 1\nscenario:\n  name: a\n  faults:\n  - {at: 1, verb: crash, args: {1: n1}}",
            ":5",
            "each name in scenario.faults.0.args must be a text, got an integer;",
        ),
        (
            "seed: 1\nscenario:\n  name: a\n  1: b",
            ":2",
            "each name in scenario must be a text, got another type;",
        ),
    ],
)
def test_a_wrong_field_of_a_case_file_is_named_with_its_line(
    text: str, line: str, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_case(text, "mine.yaml")

    assert str(error.value).startswith(f"mine.yaml{line}: ")
    assert said in str(error.value)
    assert str(error.value).endswith(
        "; correct it, or write a new case file with the option --save"
    )


def test_a_case_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"seed: \xff")

    with pytest.raises(ConfigError, match=r"mine\.yaml: byte 0xff is not UTF-8; save the file"):
        read_case(path)
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file or directory; check the path"):
        read_case(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("seed: 1\nscenario: [1, 2", 3, "did not find expected"),
        ("seed: 1\n  name: a\n", 2, "not YAML: mapping values are not allowed"),
        ("seed: 1\n\x07", 2, "control character U+0007; remove it"),
        ("seed: 1\nscenario: *other", 2, "alias *other"),
        ("seed: !!python/name:a 1", 1, "; drop the tag"),
        ("seed: 1\n{}: 2", 2, "check indentation"),
        ("seed: 1\nscenario: 2020-99-99", 2, "write a text in quotes"),
        ("seed: 1\n---\nseed: 2", 2, "a second document begins"),
        ("seed: " + "[" * 2000, 1, "nested more than"),
    ],
)
def test_broken_yaml_is_reported_with_its_file_line_and_remedy(
    text: str, line: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")

    with pytest.raises(ConfigError) as error:
        read_case(path)

    assert str(error.value).startswith(f"{path}:{line}: ")
    assert said in str(error.value)
    assert "; " in str(error.value)


def test_the_documentation_lists_all_fields() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operate" / "simulation.md").read_text("utf-8")
    section = page.partition("### Case files")[2].partition("\n##")[0]
    listed = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }

    assert listed == {each.name for kind in (Scenario, Load) for each in fields(kind)}


def test_floats_keep_all_their_digits() -> None:
    scenario = replace(SCENARIOS["steady"], seconds=0.1 + 1.2, calm=1 + 1e-7)

    assert parse_case(format_case(Case(1, scenario))).scenario == scenario
