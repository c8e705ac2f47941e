"""Command that runs benchmarks by name and prints their figures, as a table or as JSON lines."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

from msgspec.structs import asdict

from benchmarks.reporting.figure import Figure
from benchmarks.reporting.machine import about, machine
from benchmarks.reporting.plot import write_plot
from ringfence.errors import ConfigError, RingfenceError
from ringfence.rules.periods import suggest

BENCHMARKS = {
    "core": ("limiter", "memory", "growth", "ring", "wire"),
    "cluster": (
        "cluster",
        "clients",
        "loss",
        "denial",
        "lease",
        "capacity",
        "far",
        "start",
    ),
    "members": ("restarts", "crash", "stall", "join", "global"),
    "comparison": ("cold", "peers"),
    "gateway": ("integrations", "gateway", "gateway_load", "envoy", "floods"),
    "simulation": ("simulation", "membership", "replay"),
}
"""Names of the benchmarks by folder; each has a module with a function `run(rounds)`."""
FOLDERS = {name: folder for folder, names in BENCHMARKS.items() for name in names}
NAMES = tuple(FOLDERS)


def main(arguments: list[str]) -> int:
    """Run the named benchmarks, or list all names when none is given. Return the exit code."""
    # Without a cache, each process that a benchmark starts would compile our modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        hint = suggest(unknown[0], NAMES)  # Without a similar name it repeats the list.
        parser.error(
            f"a benchmark must be one of {', '.join(NAMES)}, got {unknown[0]!r}"
            + (f"; {hint}" if hint.startswith("did") else "")
        )
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more, got {options.rounds}")
    if not options.names:
        print("\n".join(NAMES))
        return 0
    try:
        write = _as_json if options.json else _as_markdown if options.markdown else _as_table
        figures = write(_run(options.names, options.rounds))
        if options.plot is not None:
            write_plot(options.plot, figures, about())
    except RingfenceError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


def module_of(name: str) -> str:
    """Return the module of a benchmark. The module of a name that is a keyword ends with `_`."""
    return f"benchmarks.{FOLDERS[name]}.{name}" + "_" * iskeyword(name)


def _as_json(figures: Iterable[Figure]) -> list[Figure]:
    """Print one line of JSON about the machine before the first round, then one line per figure."""
    figures_shown: list[Figure] = []
    print(json.dumps(asdict(machine()) | {"about": about()}), flush=True)
    for figure in figures:
        print(json.dumps(asdict(figure)), flush=True)
        figures_shown.append(figure)
    return figures_shown


def _as_table(figures: Iterable[Figure]) -> list[Figure]:
    print(about(), end="\n\n", flush=True)
    figures_shown = list(figures)
    print(_table(figures_shown))
    return figures_shown


def _as_markdown(figures: Iterable[Figure]) -> list[Figure]:
    """Print a table in the format of docs/operate/performance.md."""
    print(f"{about()}\n\n| figure | median | least | most | unit |\n|---|---|---|---|---|")
    figures_shown = list(figures)
    for figure in figures_shown:
        name, *numbers, unit = _row(figure)
        print(f"| `{name}` | {' | '.join(numbers)} | {unit} |")
    return figures_shown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure parts of Ringfence on this machine. Without a name, list the names.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help=", ".join(NAMES))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    form.add_argument("--markdown", action="store_true", help="print a table for docs/operate")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw the figures into a file of its own"
    )
    parser.add_argument("--rounds", type=int, default=5, help="samples per figure (default: 5)")
    return parser


def _run(names: Iterable[str], rounds: int) -> Iterator[Figure]:
    # Imported late: each benchmark needs only its own dependencies.
    for name in names:
        try:
            run: Callable[[int], Iterator[Figure]] = import_module(module_of(name)).run
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the benchmark {name} needs {error.name!r}, which is not installed; install "
                "what all benchmarks need: pip install '.[dev]'"
            ) from error
        yield from run(rounds)


def _table(figures: Iterable[Figure]) -> str:
    rows = [("name", "median", "min", "max", "unit"), *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{align}{width}}"
            for cell, align, width in zip(row, "<>>><", widths, strict=True)
        ).rstrip()
        for row in rows
    )


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    value, least, most = map(_number, (figure.value, figure.min, figure.max))
    return figure.name, value, least, most, figure.unit


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
