"""`ringfence rules check`: read rule files and show what they mean."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from node.cli.common import as_json, console, json_option, printable
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.rules.load import Defaults, load_files, load_path
from ringfence.rules.report import ReportRow, describe

__all__ = ["rules"]


@click.group()
def rules() -> None:
    """Look at rule files."""


@rules.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--merge", is_flag=True, help="Let several files share a domain.")
@click.option(
    "--default-algorithm",
    type=click.Choice([algorithm.value for algorithm in Algorithm]),
    default=Algorithm.SLIDING_WINDOW.value,
    show_default=True,
    help="For rules that name none, as the node's setting.",
)
@json_option
def check(files: tuple[Path, ...], merge: bool, default_algorithm: str, json_: bool) -> None:
    """Check FILES (or one directory) and print the tree: identity, algorithm, memory, bound."""
    _refuse_repeated(files)
    defaults = Defaults(algorithm=Algorithm(default_algorithm))
    if len(files) == 1:
        loaded = load_path(files[0], defaults=defaults, merge=merge)
    else:
        loaded = load_files(files, defaults=defaults, merge=merge)
    rows = describe(loaded.rules, loaded.warnings)
    count = len(loaded.rules.rules())
    if json_:
        warnings = [str(warning) for warning in loaded.warnings]
        as_json({"count": count, "rules": [asdict(row) for row in rows], "warnings": warnings})
        return
    screen = console()
    for row in rows:
        for line in _lines(row):
            screen.print(line, soft_wrap=True)
    screen.print("1 rule is good" if count == 1 else f"{count} rules are good")


def _refuse_repeated(files: tuple[Path, ...]) -> None:
    seen: set[Path] = set()
    for file in files:
        place = file.resolve()
        if place in seen:
            raise ConfigError(f"{file} is given twice; name each file once")
        seen.add(place)


def _lines(row: ReportRow) -> Iterator[Text]:
    """One place of the tree: what it is called, and, of a rule, what is to be known about it."""
    indent = "  " * row.depth
    head = Text(f"{indent}{printable(row.label)}")
    if row.limit:
        head.append(f"  {row.limit}", "bold")
    if row.name:
        head.append(f"  ({printable(row.name)})")
    yield head
    if row.identity:
        known = [f"identity {row.identity}", row.algorithm]
        if row.bytes_per_key is not None:
            known.append(f"{row.bytes_per_key} bytes per key")
        yield Text(f"{indent}    {', '.join(filter(None, [*known, *row.flags]))}", "dim")
    if row.worst is not None:
        yield Text(f"{indent}    at most {row.worst} in any one period. {row.bound}", "dim")
    for warning in row.warnings:
        yield Text(f"{indent}    warning: {printable(warning)}", "yellow")
