"""Short scenario with the rule for lending, for tests of what runs at the end of a simulation."""

from simulations.scenarios.catalog import RULES
from simulations.scenarios.generate_rules import generate_lent_rule
from simulations.scenarios.scenario import Load, Scenario
from simulations.scenarios.seeds import stream
from simulations.world.run import simulate


def violated(level="core", seed=1, **changes):
    """Return the laws that a run violates; `changes` are attributes of the scenario."""
    attributes = {
        "level": level,
        "seconds": 2.0,
        "calm": 8.0,
        "rules": RULES + generate_lent_rule(stream(seed, "rule")),
        "loads": (Load(rule="exact", per_second=5, keys=4),),
    }
    case = Scenario("closing phases", "for a test", **attributes | changes)
    return {each.property for each in simulate(case, seed, "a command").violations}
