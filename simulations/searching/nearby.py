"""Nearby runs of a failing run: the same run without one fault, and the same faults with other
seeds.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from simulations.reporting.outcome import Nearby
from simulations.scenarios.scenario import Scenario
from simulations.searching.fairness import is_valid
from simulations.searching.shrink import run_outcome

__all__ = ["run_nearby"]

_MAX_SEEDS = 3


def run_nearby(
    scenario: Scenario, seed: int, most: int, on_run: Callable[[], None] = lambda: None
) -> list[Nearby]:
    """Run at most `most` variants of a run and return their results; `on_run` is called after
    each."""
    found = []
    for change, variant, its_seed in [*_variants(scenario, seed, most)][:most]:
        outcome = run_outcome(variant, its_seed)
        violated = tuple(dict.fromkeys(each.property for each in outcome.violations))
        found.append(Nearby(change, violated, is_smaller=its_seed == seed))
        on_run()
    return found


def _variants(scenario: Scenario, seed: int, most: int) -> Iterator[tuple[str, Scenario, int]]:
    """Yield a description, a scenario and a seed for each variant, about a third of them seeds."""
    seeds = min(_MAX_SEEDS, max(most // 3, most - len(scenario.faults)))
    for at, fault in enumerate(scenario.faults[: max(0, most - seeds)]):
        faults = (*scenario.faults[:at], *scenario.faults[at + 1 :])
        variant = replace(scenario, faults=faults)
        if is_valid(variant):  # Another fault may need this one, which starts its nodes again.
            yield f"without {fault}", variant, seed
    for other in range(seed + 1, seed + 1 + seeds):
        yield f"with seed {other}", scenario, other
