"""Run benchmarks by name and print their figures, as a table for people or as JSON lines."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib import import_module

from benchmarks.figure import Figure

NAMES = (
    *("limiter", "memory", "growth", "ring", "wire", "cluster", "loss"),
    *("restarts", "membership", "faces", "gateway", "envoy", "simulation"),
)


def main(arguments: list[str]) -> int:
    """Run the benchmarks named; list them when none is. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(NAMES)}")
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; use 1 or more")
    if not options.names:
        print("\n".join(NAMES))
        return 0
    figures = _run(options.names, options.rounds)
    if options.json:
        for figure in figures:
            print(json.dumps(asdict(figure)), flush=True)
    else:
        print(_table(figures))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure parts of Ringfence on this machine. Without a name, list the names.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help=", ".join(NAMES))
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--rounds", type=int, default=5, help="samples per figure (default: 5)")
    return parser


def _run(names: Iterable[str], rounds: int) -> Iterator[Figure]:
    # Imported late: the ring can be measured without what the cluster needs.
    for name in names:
        run: Callable[[int], Iterator[Figure]] = import_module(f"benchmarks.{name}").run
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
