"""Command `ringfence simulate NAME`: one run of a scenario, with its figures and its report."""

from pathlib import Path
from typing import get_args

import click
from msgspec.structs import replace

from node.cli.common import IntegerRange, json_option
from ringfence.errors import ConfigError
from simulations.cli.single_runs import nearby_option, report_option, report_path, run_and_show
from simulations.scenarios.bounds import BOUNDS, SEED
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.faults.injection import VERBS
from simulations.scenarios.generate import DRAWN, generate_scenario
from simulations.scenarios.rule_changes import NAMES, apply_settings, parse_fault
from simulations.scenarios.scenario import Level, Scenario
from simulations.searching.case_files import Case, write_case
from simulations.world.validation import validated

__all__ = ["scenario_command"]


def scenario_command(name: str, about: str) -> click.Command:
    """Create the command that runs one scenario."""

    @click.command(name=name, help=f"{about[0].upper()}{about[1:]}.")
    @click.option("--seed", default=1, show_default=True, type=IntegerRange(int(SEED.least)))
    @click.option(
        "--nodes",
        type=_int_range("nodes"),
        help="Number of nodes in all data centers together.",
    )
    @click.option("--datacenters", type=_int_range("datacenters"))
    @click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="NAME=VALUE",
        help=f"Change the scenario; NAME is {', '.join(NAMES)}. Repeatable.",
    )
    @click.option(
        "--fault",
        "faults",
        multiple=True,
        metavar="'VERB@AT-UNTIL NAME=VALUE ...'",
        help="Fault that replaces the scenario's faults, such as 'cut@8-25 node=n1,n2'; times are "
        f"seconds of load. VERB is {', '.join(VERBS)}. Repeatable.",
    )
    @click.option("--no-faults", is_flag=True, help="Remove all faults.")
    @click.option(
        "--keep",
        metavar="NUMBERS",
        help="Numbers of the scenario's faults to keep, counted from 0, such as 0,2, or none.",
    )
    @click.option(
        "--level", type=click.Choice(get_args(Level)), help="Runtime; default: the scenario's own."
    )
    @report_option
    @nearby_option
    @click.option("--no-report", is_flag=True, help="Write no report.")
    @click.option(
        "--save",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write the scenario to this case file, for `ringfence simulate case`.",
    )
    @json_option
    def command(
        seed: int,
        nodes: int | None,
        datacenters: int | None,
        changes: tuple[str, ...],
        faults: tuple[str, ...],
        no_faults: bool,
        keep: str | None,
        level: Level | None,
        report: Path | None,
        no_report: bool,
        save: Path | None,
        nearby: int,
        json_: bool,
    ) -> None:
        original = generate_scenario(seed, level or "node") if name == DRAWN else SCENARIOS[name]
        counts = {"nodes": nodes, "datacenters": datacenters}
        words = [f"{each}={count}" for each, count in counts.items() if count is not None]
        scenario = apply_settings(original, [*words, *changes])
        if level is not None:
            scenario = replace(scenario, level=level)
        if (faults or no_faults) and keep is not None:
            raise ConfigError(
                "--keep must not be combined with --fault or --no-faults; remove one of them"
            )
        if faults and no_faults:
            raise ConfigError("--fault must not be combined with --no-faults; remove one of them")
        if faults or no_faults:
            scenario = replace(scenario, faults=tuple(parse_fault(text) for text in faults))
        if keep is not None:
            scenario = _with_kept(scenario, keep)
        path = report_path(report, name, seed, is_wanted=not no_report)
        scenario = validated(scenario)
        if save is not None:
            write_case(Case(seed, scenario), save)
        run_and_show(scenario, seed, original, path, nearby=nearby, is_json=json_)

    return command


def _int_range(name: str) -> IntegerRange:
    bounds = BOUNDS[Scenario][name]
    return IntegerRange(int(bounds.least), int(bounds.most))


def _with_kept(scenario: Scenario, keep: str) -> Scenario:
    count = len(scenario.faults)
    words = [] if keep == "none" else keep.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) < count for word in words):
        example = ",".join([str(number) for number in range(count)[:2]])
        numbers = f", or fault numbers below {count}, such as {example}" if count else ""
        raise ConfigError(
            f"--keep must be none{numbers or ' for a scenario without faults'}, got {keep!r}"
        )
    return replace(scenario, faults=tuple(scenario.faults[int(word)] for word in words))
