"""Part of `ringfence simulate mutants` that handles mutants drawn at random."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from node.cli.common import as_json, console
from ringfence.errors import ConfigError
from simulations.mutants.drawn import (
    DrawnMutant,
    LineMap,
    Measured,
    as_row,
    check_installed,
    check_test_libraries,
    draw_mutants,
    find_mutant,
    measure_simulator,
    measure_tests,
    record_tests,
    runs_of,
    score_of,
)
from simulations.mutants.value import MutantGone

__all__ = ["DEFAULT_MAP", "Choice", "Sample", "draw", "measure", "record"]

DEFAULT_MAP = ".mutants/tests.json.gz"


class Choice(Struct, frozen=True):
    """Mutants to draw, or the names of mutants that were drawn earlier."""

    count: int
    seed: int
    packages: Sequence[str]
    names: Sequence[str]

    def mutants(self) -> list[DrawnMutant]:
        """Return the mutants. Raises `ConfigError` for an unknown name."""
        try:
            named = [find_mutant(name) for name in self.names]
        except MutantGone as error:
            raise ConfigError(str(error)) from error
        return named + draw_mutants(self.seed, self.count, self.packages)


class Sample(Struct, frozen=True):
    """Drawn mutants, and the recorded lines of the unit tests."""

    mutants: Sequence[DrawnMutant]
    tests: LineMap


def draw(choice: Choice, map_file: str, *, needs_tests: bool) -> Sample:
    """Draw the mutants and load the map file.

    Raises `ConfigError` when a tool is missing, for an unknown name, and for a map file that has no
    tests although they are needed.
    """
    check_installed()
    if needs_tests:
        check_test_libraries()
    tests = LineMap.load(Path(map_file))
    if needs_tests and not tests.seconds:
        raise ConfigError(
            f"--map {map_file} must contain the lines of unit tests; record them with --record "
            "tests/gossip, and so on for each folder of tests"
        )
    return Sample(choice.mutants(), tests)


def record(map_file: str, paths: Sequence[str], jobs: int, *, json_: bool) -> None:
    """Run tests and record their lines in the map file."""
    check_installed()
    check_test_libraries()
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise ConfigError(f"--record must be a test file or a folder of tests, got {missing[0]!r}")
    tests = record_tests(Path(map_file), paths, jobs)
    if not json_:
        console().print(f"{len(tests.seconds)} tests are in {map_file}")


def measure(
    sample: Sample,
    runs: tuple[int, int, int] | None,
    jobs: int,
    at_least: float | None,
    *,
    json_: bool,
) -> bool:
    """Measure the simulator, or with no `runs` the unit tests; return whether the score is enough.

    `runs` are the numbers of seeds of each scenario for mutants, and of drawn seeds at core level
    and at node level.
    """

    def on_measured(result: Measured) -> None:
        if json_:
            as_json(as_row(result))
        else:
            console().print(_line(result), highlight=False, markup=False)

    if runs is None:
        score = score_of(measure_tests(sample.mutants, sample.tests, jobs, on_measured))
    else:
        results, false_alarms = measure_simulator(sample.mutants, runs_of(*runs), jobs, on_measured)
        score = score_of(results, false_alarms)
    if json_:
        as_json(score)
    else:
        _show(score)
    share = score["score"]
    assert isinstance(share, float)
    is_enough = at_least is None or share >= at_least
    return is_enough and not score["not_equivalent"] and not score["false_alarms"]


def _line(result: Measured) -> str:
    mutant, kill = result.mutant, result.kill
    if kill is not None:
        by = kill.by or "import"
        return f"{mutant.name}: {by}: {kill.text}"
    if result.equivalent is not None:
        return f"equivalent: {mutant.name}: {mutant.about}: {result.equivalent}"
    if not result.tried:
        return f"NOT RUN: {mutant.name} in {mutant.function}: {mutant.about}"
    return f"SURVIVED {result.tried}: {mutant.name} in {mutant.function}: {mutant.about}"


def _show(score: dict[str, object]) -> None:
    screen = console()
    for name in ("not_equivalent", "false_alarms"):
        rows = score[name]
        assert isinstance(rows, list)
        for row in rows:
            screen.print(f"{name}: {row}", style="red", markup=False)
    counted = int(str(score["drawn"])) - int(str(score["equivalent"]))
    screen.print(
        f"\n{score['found']} of {counted} drawn mutants were detected; "
        f"{score['equivalent']} more are equivalent; no test or run executes the lines of "
        f"{score['not_run']} survivors"
    )
