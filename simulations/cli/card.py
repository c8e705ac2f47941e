"""Command `ringfence simulate card`: the report card of a release, from measured results."""

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from node.cli.common import as_json, console, json_option, reader_may_be_gone
from ringfence.errors import ConfigError
from simulations.reporting.card import Results, render_card
from simulations.text_files import read_text

__all__ = ["card"]


@click.command()
@click.argument(
    "results",
    nargs=-1,
    required=True,
    metavar="RESULT...",
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Path of the HTML page; default: ringfence-card-DATE.html.",
)
@json_option
def card(results: tuple[Path, ...], output: Path | None, json_: bool) -> None:
    """Write the report card of a release: one dated page about many results of the simulator.

    Each RESULT is a file with the output of `ringfence simulate` with --json: of a scenario, of
    swarm, or of mutants.

    Exit status: 0 if no result has a problem, 1 if one has, 2 for invalid input.
    """
    found = Results()
    for path in results:
        found.add(path, read_text(path, "result file").splitlines())
    date = datetime.now(UTC).date().isoformat()
    page = output or Path(f"ringfence-card-{date}.html")
    try:
        text = render_card(found, version("ringfence"), date)
        page.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"cannot write the report card {page}: {error.strerror}") from error
    with reader_may_be_gone():
        _show(found, date, page, is_json=json_)
    if found.problems:
        raise SystemExit(1)


def _show(found: Results, date: str, page: Path, *, is_json: bool) -> None:
    if is_json:
        as_json(
            {
                "date": date,
                "runs": found.seeds,
                "processor_hours": round(found.processor_hours, 4),
                "problems": found.problems,
                "page": str(page),
            }
        )
    else:
        for problem in found.problems:
            console().print(problem, style="red")
        console().print(f"report card: {page}")
