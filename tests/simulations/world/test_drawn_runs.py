"""A few runs that are generated from seeds: all invariants hold."""

import pytest

from simulations.running import run_scenario
from simulations.scenarios.generate import generate_scenario

SEEDS = (8_301_000, 8_301_002, 8_301_003, 8_301_005, 8_301_007)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_invariants_hold_in_a_generated_run(seed: int) -> None:
    scenario = generate_scenario(seed, "core")

    outcome = run_scenario(scenario, seed)

    assert outcome.violations == []
    assert outcome.pairs
