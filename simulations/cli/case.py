"""Command `ringfence simulate case`: one run of the scenario in a case file."""

import shlex
from pathlib import Path

import click

from node.cli.common import json_option
from simulations.cli.single_runs import nearby_option, report_option, report_path, run_and_show
from simulations.searching.case_files import read_case

__all__ = ["case"]


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@report_option
@nearby_option
@click.option("--no-report", is_flag=True, help="Write no report.")
@json_option
def case(path: Path, report: Path | None, no_report: bool, nearby: int, json_: bool) -> None:
    """Run the scenario in a case file, which a swarm or the option --save has written.

    Exit status: 0 if all invariants hold, 1 if one is violated, 2 for invalid input.
    """
    found = read_case(path)
    scenario = found.scenario
    page = report_path(report, scenario.name, found.seed, is_wanted=not no_report)
    command = shlex.join(["ringfence", "simulate", "case", str(path)])
    run_and_show(
        scenario, found.seed, scenario, page, command=command, nearby=nearby, is_json=json_
    )
