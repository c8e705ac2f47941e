"""`ringfence rules check`: read rule files and show what they mean."""

from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from node.cli.common import as_json, json_option
from ringfence.limiter import Algorithm
from ringfence.rules.load import Defaults, load_files, load_path
from ringfence.rules.report import describe

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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("rule", "limit", "algorithm", "identity", "bytes per key", "at most"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            "  " * row.depth + row.label,
            row.limit,
            row.algorithm,
            row.identity,
            "" if row.bytes_per_key is None else str(row.bytes_per_key),
            row.bound,
        )
    console = Console()
    console.print(table)
    for warning in loaded.warnings:
        console.print(f"warning: {warning}", style="yellow", highlight=False)
    console.print(f"{count} rules are good", highlight=False)
