import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from node.cross_dc.split import share_of
from ringfence.limiter.reference.window import Window
from simulations.mutants import (
    MUTANTS,
    TESTBEDS,
    Edit,
    Kill,
    Mutant,
    MutantGone,
    Result,
    applied,
    as_row,
    run_mutants,
    run_on_testbed,
    summary,
)

WORDS = Edit("node.cross_dc.split:_part", "amount // count", "amount")


def target_of(edit: Edit) -> object:
    module, _, path = edit.target.partition(":")
    found: object = inspect.importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    return found


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_can_be_applied_and_undone(name: str) -> None:
    mutant = MUTANTS[name]
    before = [target_of(edit) for edit in mutant.edits]

    with applied(mutant):
        during = [target_of(edit) for edit in mutant.edits]

    assert all(one is not other for one, other in zip(before, during, strict=True))
    assert [target_of(edit) for edit in mutant.edits] == before


def test_there_are_enough_mutants_and_each_has_a_scenario() -> None:
    assert len(MUTANTS) >= 34
    assert all(mutant.testbeds for mutant in MUTANTS.values())
    assert {name for mutant in MUTANTS.values() for name in mutant.testbeds} == TESTBEDS.keys()
    assert all(mutant.about[-1] != "." for mutant in MUTANTS.values())


def test_the_page_on_mutants_lists_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "internals" / "mutation-testing.md").read_text(
        "utf-8"
    )
    tables = page.partition("The following tables list")[2]
    rows = {line.split(" | ")[0].strip("| `"): line for line in tables.splitlines() if "| " in line}

    assert all(mutant.about in rows[mutant.name] for mutant in MUTANTS.values())
    assert all(testbed.scenario.about in rows[name] for name, testbed in TESTBEDS.items())
    assert len(rows) == len(MUTANTS) + len(TESTBEDS) + 2  # and the table headings


def test_a_mutated_function_applies_in_all_importing_modules() -> None:
    from node.cross_dc import counts  # the module's own name for `share_of`

    edit = Edit(
        "node.cross_dc.split:share_of", "names = sorted({datacenter, *datacenters})", "names = [1]"
    )
    with applied(Mutant("any", "", (edit,), ())):
        assert counts.share_of is not share_of
    assert counts.share_of is share_of


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            Edit("node.cross_dc.split:no_function", "a", "b"),
            "node.cross_dc.split:no_function does not exist",
        ),
        (
            Edit("node.cross_dc.split:Nothing.method", "a", "b"),
            "node.cross_dc.split:Nothing.method does not exist",
        ),
        (
            Edit("node.cross_dc.split:_part", "not there", "b"),
            "must contain this code",
        ),
        (Edit("node.cross_dc.split:_part", "count", "b"), "must contain this code"),
        (
            Edit("node.shards.fallback_log:_PARTS", "128", "1"),
            "must be a function",
        ),
    ],
)
def test_a_mutant_of_removed_code_raises_and_changes_nothing(edit: Edit, says: str) -> None:
    first = Edit("node.cross_dc.split:share_of", "sorted", "list")
    before = target_of(first)

    with (
        pytest.raises(MutantGone, match=says),
        applied(Mutant("old", "", (first, edit), ())),
    ):
        pass

    assert target_of(first) is before


MEAN = """
def mean(numbers, base):
    if not numbers:
        return 0
    return sum(numbers) // len(numbers) + base
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Create a module with the function `mean`."""
    (tmp_path / "mutant_subject.py").write_text(MEAN, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("mutant_subject")
    del sys.modules["mutant_subject"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("len(numbers) + base", "len(numbers) - base"),
        ("len(values) + base", "len(values) - base"),
        ("sum(values) // len(\n    values,\n) + offset", "sum(values) // len(values) - offset"),
        ("return sum(numbers)", "numbers = numbers[:2]\nbase = -base\nreturn sum(numbers)"),
    ],
)
def test_quoted_code_survives_renames_and_line_breaks(
    module: ModuleType, old: str, new: str
) -> None:
    with applied(Mutant("any", "", (Edit("mutant_subject:mean", old, new),), ())):
        assert module.mean([2, 4], 1) == 2
    assert module.mean([2, 4], 1) == 4


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("old", ["average(one) // count(one)", "sum(first) // len(second)"])
def test_other_code_of_the_same_shape_does_not_match(old: str) -> None:
    edit = Edit("mutant_subject:mean", old, "0")
    with pytest.raises(MutantGone), applied(Mutant("any", "", (edit,), ())):
        pass


def test_a_function_is_found_after_its_module_has_moved() -> None:
    edit = Edit("node.cross_dc.former_name:share_of", "sorted", "list")

    with applied(Mutant("any", "", (edit,), ())):
        pass


def test_a_mutation_is_undone_if_the_block_fails() -> None:
    before = Window.check

    with pytest.raises(ZeroDivisionError), applied(MUTANTS["cost-ignored"]):
        raise ZeroDivisionError

    assert Window.check is before


def test_a_crash_is_a_violation() -> None:
    edit = Edit(
        "simulations.judging.ledger:Ledger.add", "self.answers.append((rule, answer))", "1 / 0"
    )

    found = run_on_testbed(Mutant("crash", "", (edit,), ()), TESTBEDS["costs"], 1)

    assert [each.property for each in found] == ["crash"]
    assert "ZeroDivisionError" in found[0].text


def test_an_excused_decision_without_a_fault_is_a_violation() -> None:
    """A client hides an answer that is missing: it asks the standby, and 1 s later its policy."""
    found = run_on_testbed(MUTANTS["repeats-unanswered"], TESTBEDS["resets"], 1)

    assert [each.property for each in found] == ["excused"]
    assert "break: " in found[0].text


def test_a_mutation_run_detects_mutants_and_accepts_the_shipped_code() -> None:
    reported: list[tuple[str, int, int]] = []
    mutants = [MUTANTS["merge-by-sum"], MUTANTS["cost-ignored"]]

    results = run_mutants(
        mutants, (1, 2), 2, lambda result, done, of: reported.append((result.name, done, of))
    )

    assert [result.mutant for result in results] == [None, None, *mutants]
    assert [result.kill is None for result in results] == [True, True, False, False]
    assert [(result.runs, result.seeds) for result in results] == [(2, 2), (2, 2), (1, 0), (1, 0)]
    assert results[2].kill is not None
    assert (results[2].kill.scenario, results[2].kill.seed) == ("two-centers", 1)
    assert results[2].kill.violation == "agreement"
    assert sorted(reported)[-1][0] == "merge-by-sum"
    assert [(done, of) for _, done, of in reported] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert summary(results) == {"applied": 2, "found": 2, "survivors": [], "false_alarms": []}


def test_a_run_that_takes_too_long_is_ended() -> None:
    (shipped, result) = run_mutants([MUTANTS["cost-ignored"]], (1,), 2, run_timeout=0.01)

    assert result.kill is not None
    assert result.kill.violation == "hang"
    assert shipped.kill is not None  # It has the same time-out as a mutant.


@pytest.mark.parametrize(
    ("mutant", "jobs", "says"),
    [
        (Mutant("lost", "", (WORDS,), ("nowhere",)), 1, "'nowhere', which is no scenario"),
        (MUTANTS["cost-ignored"], 0, "give at least 1"),
    ],
)
def test_an_invalid_mutation_run_is_rejected(mutant: Mutant, jobs: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        run_mutants([mutant], (1,), jobs)


def test_rows_and_summary_contain_all_results() -> None:
    kill = Kill("crash", 2, "lost_hits", "one of two")
    mutant = MUTANTS["dirty-key-lost"]
    results = [
        Result(None, None, 3, 3, 1.0),
        Result(None, Kill("leave", 3, "outage", "k0"), 3, 2, 1.0),
        Result(mutant, kill, 2, 1, 2.5),
        Result(MUTANTS["stale-slot"], None, 3, 3, 4.0),
    ]

    assert as_row(results[2]) == {
        "mutant": "dirty-key-lost",
        "about": mutant.about,
        "found": True,
        "survived_seeds": 1,
        "runs": 2,
        "seconds": 2.5,
        "scenario": "crash",
        "seed": 2,
        "violation": "lost_hits",
        "text": "one of two",
    }
    assert as_row(results[3])["found"] is False
    assert summary(results) == {
        "applied": 2,
        "found": 1,
        "survivors": [
            {"name": "stale-slot", "why": "no violation in 3 runs, 3 seeds of each scenario"}
        ],
        "false_alarms": [{"scenario": "leave", "seed": 3, "violation": "outage", "text": "k0"}],
    }
