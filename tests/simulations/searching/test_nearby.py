from msgspec.structs import replace

from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.scenario import Fault, Load
from simulations.searching.nearby import run_nearby

CANARY = replace(
    SCENARIOS["canary"],
    level="core",
    seconds=6.0,
    calm=1.0,
    loads=(Load(rule="exact", per_second=60, keys=4),),
    faults=(Fault(1, "cut", 6, {"node": "n1"}), Fault(2, "loss", 3, {"share": 0.01})),
)


def test_a_run_is_repeated_without_each_fault_and_with_other_seeds() -> None:
    done = []
    found = run_nearby(CANARY, 7, 3, lambda: done.append(1))

    assert [each.change for each in found] == [
        "without 1-6 s: cut node=n1",
        "without 2-3 s: loss share=0.01",
        "with seed 8",
    ]
    assert found[0].violated == ()
    assert found[1].violated != ()
    assert [each.is_smaller for each in found] == [True, True, False]
    assert len(done) == 3


def test_no_nearby_run_lacks_the_fault_that_starts_the_nodes_again() -> None:
    faults = Fault(1, "crash"), Fault(2, "crash", 3, {"node": "n1,n2"})
    found = run_nearby(replace(CANARY, faults=faults), 7, 3)

    assert [each.change for each in found] == ["without 1 s: crash", "with seed 8"]


def test_the_number_of_nearby_runs_is_limited() -> None:
    assert run_nearby(CANARY, 7, 0) == []
