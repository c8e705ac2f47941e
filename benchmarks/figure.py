"""One measured quantity: the median of several rounds, with the least and the most beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

__all__ = ["Figure", "measure"]


@dataclass(frozen=True)
class Figure:
    """What a benchmark found. The field names are those of the JSON lines."""

    name: str
    """The benchmark and the quantity, joined by a dot: `ring.lookup_ns`."""
    value: float
    """The median of the rounds."""
    unit: str
    min: float
    max: float
    rounds: int


def measure(name: str, unit: str, sample: Callable[[], float], rounds: int) -> Figure:
    """Take `rounds` samples, at least 1, one after the other; each is a value in `unit`."""
    values = [sample() for _ in range(rounds)]
    return Figure(name, median(values), unit, min(values), max(values), rounds)
