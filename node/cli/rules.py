"""`ringfence rules check`: validate rule files and show their rules."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec import to_builtins
from rich.text import Text

from node.cli.common import (
    IntegerRange,
    NumberRange,
    VerbGroup,
    as_json,
    console,
    json_option,
    printable,
)
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.peering.engine_choice import chosen_engine
from ringfence.rules.loading.yaml_files import Defaults, RuleFileError, load_files, load_path
from ringfence.rules.report import Datacenters, ReportRow, describe, too_short

__all__ = ["rules"]

_UNKNOWN = (
    "how far limits of global scope can be exceeded depends on the data centers; "
    "add --datacenters N --rtt MS"
)


_STDIN = Path("/dev/stdin")


@click.group(cls=VerbGroup)
def rules() -> None:
    """Validate and show rule files."""


@rules.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--merge", is_flag=True, help="Let several files share a domain.")
@click.option(
    "--default-algorithm",
    type=click.Choice([algorithm.value for algorithm in Algorithm]),
    default=Algorithm.SLIDING_WINDOW.value,
    show_default=True,
    help="Algorithm of rules without one, as in the node's settings.",
)
@click.option(
    "--datacenters",
    type=IntegerRange(1, 1000),
    metavar="N",
    help="Print the over-admission bound of rules with global scope for N data centers.",
)
@click.option(
    "--rtt",
    type=NumberRange(0, 10_000),
    metavar="MS",
    help="With --datacenters: the round trip between two of them.",
)
@click.option(
    "--demand",
    type=NumberRange(0, 1_000_000),
    metavar="X",
    help="With --datacenters: demand of all callers, in multiples of the limit.  [default: 2]",
)
@json_option
def check(
    files: tuple[Path, ...],
    merge: bool,
    default_algorithm: str,
    datacenters: int | None,
    rtt: float | None,
    demand: float | None,
    json_: bool,
) -> None:
    """Check FILES (or one directory) and print the rule tree: identity, algorithm, memory, admitted
    units. The file - is standard input."""
    files = tuple(_STDIN if str(file) == "-" else file for file in files)
    _refuse_repeated(files)
    _refuse_directories(files)
    where = _datacenters(datacenters, rtt, demand)
    defaults = Defaults(algorithm=Algorithm(default_algorithm))
    if len(files) == 1:
        loaded = load_path(files[0], defaults=defaults, merge=merge)
    else:
        loaded = load_files(files, defaults=defaults, merge=merge)
    problems = too_short(loaded, where) if where is not None else []
    if problems:
        raise RuleFileError(problems)
    is_compiled = chosen_engine().is_compiled
    rows = describe(loaded.rules, loaded.warnings, where, is_compiled=is_compiled)
    warnings = [str(warning) for warning in loaded.warnings]
    count = len(loaded.rules.rules())
    is_unknown = where is None and any(rule.scope == "global" for rule in loaded.rules.rules())
    if is_unknown:
        warnings.append(_UNKNOWN)
    if json_:
        as_json({"count": count, "rules": to_builtins(rows), "warnings": warnings})
        return
    screen = console()
    for row in rows:
        for line in _lines(row):
            screen.print(line, soft_wrap=True)
    if is_unknown:
        screen.print(Text(f"warning: {_UNKNOWN}", "yellow"), soft_wrap=True)
    screen.print("1 rule is good" if count == 1 else f"{count} rules are good")


def _datacenters(count: int | None, rtt: float | None, demand: float | None) -> Datacenters | None:
    """Return the options about data centers; None when none was given."""
    for name, number in (("--rtt", rtt), ("--demand", demand)):
        if number is not None and count is None:
            raise ConfigError(f"{name} must be used with --datacenters; add --datacenters N")
    if count is None:
        return None
    if rtt is None:
        raise ConfigError("--datacenters without --rtt; add the round trip between two, in ms")
    return Datacenters(count, round(rtt * 1e6), 2.0 if demand is None else demand)


def _refuse_repeated(files: tuple[Path, ...]) -> None:
    seen: set[Path] = set()
    for file in files:
        place = file.resolve()
        if place in seen:
            raise ConfigError(f"{file} is given twice; name each file once")
        seen.add(place)


def _refuse_directories(files: tuple[Path, ...]) -> None:
    for file in files:
        if len(files) > 1 and os.path.isdir(file):
            raise ConfigError(
                f"FILES must be several files or one directory, got the directory {file} beside "
                f"{len(files) - 1} other path(s); name its files, or give the directory alone"
            )


def _admitted(row: ReportRow) -> str:
    """Describe how many units a rule admits in a period: usually, and in the worst case."""
    if row.algorithm == Algorithm.CONCURRENCY:
        return f"at most {row.worst} at any instant"
    if row.usual == row.worst:
        return f"at most {row.worst} in any one period"
    return f"usually at most {row.usual} in any one period, in the worst case {row.worst}"


def _lines(row: ReportRow) -> Iterator[Text]:
    """Return the lines of one entry of the printed rule tree: its name, and the details of its
    rule."""
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
        yield Text(f"{indent}    {_admitted(row)}. {row.bound}", "dim")
    if row.cross_dc is not None:
        reach = row.cross_dc
        words = f"in all data centers at most {reach.bound} are counted"
        if reach.ceiling != reach.bound:
            words += f", or {reach.ceiling} when links are cut or all demand comes at once"
        yield Text(f"{indent}    {words}. {reach.reason}", "dim")
    for warning in row.warnings:
        yield Text(f"{indent}    warning: {printable(warning)}", "yellow")
