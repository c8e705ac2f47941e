"""Command group `ringfence simulate`: one command per scenario, and a few others."""

from difflib import get_close_matches
from importlib import import_module

import click
from rich.table import Table

from node.cli.common import as_json, console, json_option
from simulations.cli.scenario import scenario_command
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.generate import DRAWN

__all__ = ["simulate"]

_MODULES = {
    "case": "case.case",
    "swarm": "swarm.swarm",
    "card": "card.card",
    "what-if": "what_if.what_if_command",
    "mutants": "mutants.mutants",
}
"""Module and function of each other command, which is imported on demand."""
_DRAWN = "one seed of the swarm: a run with generated hosts, network, load and faults"


class _Scenarios(click.Group):
    """Command group that has one command for each scenario."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*SCENARIOS, DRAWN, *_MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SCENARIOS:
            return scenario_command(cmd_name, SCENARIOS[cmd_name].about)
        if cmd_name == DRAWN:
            return scenario_command(cmd_name, _DRAWN)
        if cmd_name not in _MODULES:
            return None
        module, name = _MODULES[cmd_name].split(".")
        verb = getattr(import_module(f"simulations.cli.{module}"), name)
        assert isinstance(verb, click.Command)
        return verb

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            steady = self.get_command(ctx, "steady")
            if steady is None or not any(name in each.opts for each in steady.params):
                raise
            raise click.UsageError(
                f"option {name} must follow the name of a scenario, as in `ringfence simulate "
                f"steady {name} ...`",
                ctx,
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known:
            near = get_close_matches(args[0], known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise click.UsageError(
                f"scenario must be one that `ringfence simulate` lists, got {args[0]!r}; {hint}",
                ctx,
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Scenarios, invoke_without_command=True)
@json_option
@click.pass_context
def simulate(ctx: click.Context, json_: bool) -> None:
    """Simulate a cluster with faults in one process, on virtual time, from a seed.

    The simulated nodes run the shipped code. Without a NAME, the command lists the scenarios.

    Exit status: 0 if all invariants hold, 1 if one is violated, 2 for invalid input.
    """
    if ctx.invoked_subcommand is not None:
        return
    if json_:
        for name, scenario in SCENARIOS.items():
            as_json({"name": name, "about": scenario.about, "level": scenario.level})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("scenario", "level", "nodes", "data centers", "what it shows"):
        table.add_column(heading, overflow="fold")
    for name, scenario in SCENARIOS.items():
        table.add_row(
            name,
            scenario.level,
            str(scenario.nodes),
            str(scenario.datacenters),
            scenario.about,
        )
    screen = console()
    screen.print(table)
    screen.print("\nRun one:              ringfence simulate split-brain --seed 7")
    screen.print("Search for failures:  ringfence simulate swarm --seeds 200 --jobs 2")
    screen.print("Analyse your own log: ringfence simulate what-if --rules FILE --log ACCESS.LOG")
