"""Text form of changes to scenarios: meaning, invalid input and formatting."""

import shlex

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ringfence.errors import ConfigError
from simulations.cli.scenario import scenario_command
from simulations.reporting.outcome import Outcome
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.faults.arguments import MAX_STALL_S, NEEDS, argument_names
from simulations.scenarios.faults.injection import VERBS
from simulations.scenarios.generate import DRAWN, generate_scenario
from simulations.scenarios.rule_changes import (
    apply_settings,
    format_fault,
    parse_fault,
    replay_command,
)
from simulations.scenarios.scenario import Args, Fault, Scenario
from simulations.world.validation import validated

STEADY = SCENARIOS["steady"]
CRASH = SCENARIOS["node-crash"]
times = st.floats(0, 86_400).map(lambda at: round(at, 3)) | st.floats(0, 1e-3)
hosts = st.lists(st.integers(1, 200).map("n{}".format), min_size=1, max_size=3).map(",".join)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    verb = draw(st.sampled_from(sorted(VERBS)))
    args: Args = {}
    if draw(st.booleans()):
        args["node"] = draw(hosts)
    if verb in NEEDS:
        name, least, most = NEEDS[verb]
        args[name] = draw(
            st.integers(least, int(most)) if isinstance(least, int) else st.floats(least, most)
        )
    for name in ("one_way", "moves", "seedless"):
        if name in argument_names(verb) and draw(st.booleans()):
            args[name] = 1
    at = draw(times)
    if verb == "stall":
        return Fault(at, verb, at + draw(st.floats(0, MAX_STALL_S)), args)
    return Fault(at, verb, draw(st.none() | times.map(lambda more: at + more)), args)


@given(faults())
def test_parsing_a_formatted_fault_returns_an_equal_fault(fault: Fault) -> None:
    assert parse_fault(format_fault(fault)) == fault


@given(st.integers(0, 500), st.sampled_from(["node", "core"]))
def test_generated_faults_have_a_text_form(seed: int, level: str) -> None:
    for fault in generate_scenario(seed, level).faults:  # type: ignore[arg-type]
        assert parse_fault(format_fault(fault)) == fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be VERB@AT"),
        ("crash", "must be VERB@AT"),
        ("crash@-3", "must be VERB@AT"),
        ("crash@1.2.3", "1.2.3"),
        ("flood@3", "verb of a fault must be one of crash, leave"),
        ("crash@8-3", "must not be before its begin"),
        ("crash@3 n2", "must be NAME=VALUE, got 'n2'"),
        ("crash@3 node=", "must be NAME=VALUE, got 'node='"),
        ("crash@3 nodes=n2", "argument of crash must be one of node, zone, datacenter"),
        (
            "pause@3-4 node=n1 from=n2",
            "argument of pause must be one of node, zone, datacenter, got 'from'",
        ),
        ("loss@3-9", "loss must have share=NUMBER, from 0 to 1"),
        ("loss@3-9 share=2", "loss must have share=NUMBER, from 0 to 1"),
        ("loss@3-9 share=nan", "loss must have share=NUMBER, from 0 to 1"),
        ("slow@3-9 extra_ms=long", "slow must have extra_ms=NUMBER"),
        ("crash@3-9 moves=2", "moves of crash must be 1, got 2"),
        ("cut@3-9 one_way=0", "one_way of cut must be 1, got 0"),
        ("crash@1-2 node=n1 node=n2", "argument node must be given once, got it twice; write"),
        ("cut@1-12 node=n1 from=n1", "from of cut must name other hosts than node, got n1 for"),
        ("cut@1-12 node=n1,n2 from=n2,n1", "from of cut must name other hosts than node"),
        ("crash@1-8 node=n1 zone=z1", "one of node, zone, datacenter, got node and zone; name"),
        ("errors@1-2 count=1.5 node=n1", "errors must have count=INTEGER, from 1 to 1e+06"),
        ("stall@5-10.01 node=n1", "stall must last at most 5 s, got 5-10.01 s: stall"),
        ("stall@5 node=n1", "stall must have an end, as in stall@5-8, got 5 s: stall"),
        (f"crash@{'9' * 400}", "begin of a fault must be seconds of at least 0, got inf"),
    ],
)
def test_an_invalid_fault_is_rejected_with_a_fix(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_fault(text)

    assert said in str(refused.value)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nodes", "must be NAME=VALUE"),
        ("colour=red", "name in --set must be known, got 'colour=red'; choose one of nodes, datac"),
        ("secnds=5", "name in --set must be known, got 'secnds=5'; did you mean seconds?"),
        ("nodes=0", "an integer from 1 to 5000"),
        ("nodes=1e3", "an integer from 1 to 5000"),
        ("datacenters=31", "an integer from 1 to 30"),
        ("seconds=0.5", "a number from 1 to 86400"),
        ("calm=inf", "a number from 1 to 86400"),
        ("loss=1", "a number from 0 to 0.9"),
        ("loss=much", "a number from 0 to 0.9"),
        ("latency=moon", "latency must be lan, near, regions, zero"),
        ("per_second=-1", "a number from 0 to 100000"),
        ("keys=many", "an integer from 1 to 1000000"),
    ],
)
def test_an_invalid_setting_is_rejected_with_a_fix(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        apply_settings(STEADY, [word])

    assert said in str(refused.value)
    assert repr(word) in str(refused.value)


def test_a_setting_of_the_load_holds_for_every_load() -> None:
    changed = apply_settings(STEADY, ["per_second=7", "keys=3", "cost=2"])

    assert len(changed.loads) > 1
    assert {(load.per_second, load.keys, load.cost) for load in changed.loads} == {(7, 3, 2)}
    assert [load.rule for load in changed.loads] == [load.rule for load in STEADY.loads]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_built_in_scenario_is_valid_and_its_faults_have_text(name: str) -> None:
    scenario = validated(SCENARIOS[name])

    assert tuple(parse_fault(format_fault(fault)) for fault in scenario.faults) == scenario.faults


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.integers(5, 5000),
        "zones": st.integers(1, 30),
        "seconds": st.floats(10, 86_400),
        "calm": st.floats(1, 86_400),
        "latency": st.sampled_from(["lan", "near", "zero"]),
        "loss": st.floats(0, 0.9),
        "repeats": st.floats(0, 0.9),
        "per_second": st.floats(0, 100_000),
        "keys": st.integers(1, 1_000_000),
        "cost": st.integers(1, 1_000_000),
        "least_parts": st.integers(1, 100),
    },
)


def replayed(command: str) -> Scenario:
    """Return the scenario that the command line builds from a command."""
    ringfence, simulate, name, *words = shlex.split(command)
    assert (ringfence, simulate) == ("ringfence", "simulate")
    made: list[Scenario] = []

    def note(scenario: Scenario, seed: int, original: Scenario, progress: object) -> Outcome:
        made.append(scenario)
        return Outcome(scenario, seed, "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulations.cli.single_runs.run_scenario", note)
        verb = scenario_command(name, "for a test")
        ran = CliRunner().invoke(verb, [*words, "--no-report"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    [scenario] = made
    return scenario


@given(CHANGES, st.none() | st.lists(faults(), max_size=3))
def test_the_command_of_a_changed_scenario_recreates_it(
    changes: dict[str, object], instead: list[Fault] | None
) -> None:
    scenario = apply_settings(CRASH, [f"{name}={value}" for name, value in changes.items()])
    if instead is not None:
        known = [
            replace(
                fault,
                at=(at := fault.at % scenario.read_at),
                until=None if fault.until is None else at + (fault.until - fault.at),
                args=fault.args | {"node": "n1"},
            )
            for fault in instead
        ]
        scenario = replace(scenario, faults=tuple(known))

    assert replayed(replay_command(scenario, CRASH, 7)) == scenario


@pytest.mark.parametrize("level", ["node", "core"])
def test_the_command_of_a_generated_scenario_names_seed_level_and_remaining_faults(
    level: str,
) -> None:
    original = generate_scenario(12, level)  # type: ignore[arg-type]
    shrunk = replace(original, faults=original.faults[:1])

    assert replay_command(original, original, 12) == (
        f"ringfence simulate {DRAWN} --seed 12 --level {level}"
    )
    assert replayed(replay_command(shrunk, original, 12)) == shrunk
    bare = replace(original, faults=())
    assert replayed(replay_command(bare, original, 12)) == bare
