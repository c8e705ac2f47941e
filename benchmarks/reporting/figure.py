"""Figure: the median, minimum and maximum of a quantity over several rounds."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from msgspec import Struct

__all__ = ["Figure", "figure", "interleaved", "measure", "ratio"]

Sample = TypeVar("Sample")


class Figure(Struct, frozen=True):
    """Result of a benchmark: a quantity in several rounds. The field names are the keys of the JSON
    lines."""

    name: str
    """The benchmark and the quantity, joined by a dot: `ring.lookup_ns`."""
    value: float
    """The median of the rounds."""
    unit: str
    min: float
    max: float
    rounds: int


def measure(name: str, unit: str, sample: Callable[[], float], rounds: int) -> Figure:
    """Take `rounds` samples of a quantity (at least 1); each call of `sample` returns a value in
    `unit`."""
    return figure(name, unit, [sample() for _ in range(rounds)])


def interleaved(
    samples: Mapping[str, Callable[[], Sample]], rounds: int
) -> dict[str, list[Sample]]:
    """Take one sample of each quantity in every round, so that all have the same conditions."""
    values: dict[str, list[Sample]] = {name: [] for name in samples}
    for _ in range(rounds):
        for name, sample in samples.items():
            values[name].append(sample())
    return values


def figure(name: str, unit: str, values: Sequence[float]) -> Figure:
    """Create a figure from the values of several rounds."""
    return Figure(name, median(values), unit, min(values), max(values), len(values))


def ratio(name: str, part: Sequence[float], whole: Sequence[float]) -> Figure:
    """Return the ratio `part` / `whole` of two quantities in each round, as a figure."""
    return figure(name, "x", [mine / other for mine, other in zip(part, whole, strict=True)])
