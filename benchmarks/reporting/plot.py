"""Plot of figures as one self-contained SVG file: a bar per figure, with a line from minimum to
maximum.

Figures of one benchmark and one unit share a scale. It is logarithmic when they differ by a large
factor.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from msgspec import Struct

from benchmarks.reporting.figure import Figure
from ringfence.errors import ConfigError
from simulations.reporting.plots import escape, number

__all__ = ["drawn", "write_plot"]

# Pixels.
_WIDTH, _LEFT, _RIGHT = 960, 330, 110
_ROW, _BAR, _HEAD, _MARGIN = 20, 12, 34, 16
_LOG_FROM = 30.0
"""Ratio of the largest to the smallest figure from which the scale is logarithmic."""
_MIN = 1e-9
"""Smaller values count as 0; no figure is that small in its unit."""
_STYLE = (
    "svg{background:#fff;font:12px system-ui,sans-serif;fill:#222}"
    ".head{font-weight:600;font-size:13px}.about{fill:#666}"
    ".bar{fill:#3b76af}.whisker{stroke:#222;fill:none}.axis{stroke:#bbb}"
)


def write_plot(path: Path, figures: Sequence[Figure], about: str) -> None:
    """Write the plot to an SVG file. Raises `ConfigError` when it cannot be written."""
    try:
        path.write_text(drawn(figures, about), "utf-8")
    except OSError as error:
        raise ConfigError(
            f"--plot: {path} cannot be written: {error.strerror}; name a file in a folder that is "
            "there and yours"
        ) from error


def drawn(figures: Sequence[Figure], about: str) -> str:
    """Return the plot as SVG text: a line about the machine, then the figures in order."""
    rows: list[str] = []
    y = float(_MARGIN)
    for line in _wrapped(about):
        y += 16
        rows.append(f'<text class="about" x="{_MARGIN}" y="{y:.0f}">{escape(line)}</text>')
    ordered = sorted(figures, key=lambda each: _group_of(each, figures))
    for _, group in groupby(ordered, key=lambda each: _group_of(each, figures)):
        shapes, y = _group(list(group), y + _HEAD)
        rows += shapes
    height = y + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'width="{_WIDTH}" height="{height:.0f}" role="img" aria-label="Benchmarks">\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(rows) + "\n</svg>\n"
    )


class _Scale(Struct, frozen=True):
    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, values: Iterable[float]) -> "_Scale":
        found = list(values)
        least, most = min(found), max(found)
        if least > _MIN and most > _LOG_FROM * least:
            powers = math.floor(math.log10(least)), math.ceil(math.log10(most))
            return cls(10.0 ** powers[0], 10.0 ** powers[1], is_log=True)
        low, high = min(0.0, least), max(0.0, most)
        return cls(low, high if high > low else low + 1.0, is_log=False)

    def x(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = (math.log10(max(each, self.low)) for each in (value, low, high))
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    @property
    def ground(self) -> float:
        """Return the value at which all bars begin."""
        return self.low if self.is_log else 0.0


def _group(figures: Sequence[Figure], y: float) -> tuple[list[str], float]:
    """Draw the figures of one scale below the coordinate `y`; return the y coordinate of their
    end."""
    scale = _Scale.of(value for each in figures for value in (each.min, each.value, each.max))
    benchmark, unit = figures[0].name.partition(".")[0], figures[0].unit
    head = f"{benchmark}, {unit}" + (", logarithmic scale" if scale.is_log else "")
    shapes = [f'<text class="head" x="{_MARGIN}" y="{y:.0f}">{escape(head)}</text>']
    y += 8
    ground, top = scale.x(scale.ground), y
    for each in figures:
        shapes += _row(each, scale, y + _ROW / 2)
        y += _ROW
    shapes.append(f'<path class="axis" d="M{ground:.1f} {top:.0f}V{y:.0f}"/>')
    return shapes, y


def _row(figure: Figure, scale: _Scale, middle: float) -> list[str]:
    ground, x = scale.x(scale.ground), scale.x(figure.value)
    least, most = scale.x(figure.min), scale.x(figure.max)
    label = escape(figure.name.partition(".")[2] or figure.name)
    return [
        f'<text x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{label}</text>',
        f'<rect class="bar" x="{min(ground, x):.1f}" y="{middle - _BAR / 2:.1f}" '
        f'width="{max(abs(x - ground), 0.5):.1f}" height="{_BAR}">'
        f"<title>{escape(figure.name)}: {_number(figure.value)} {escape(figure.unit)}, "
        f"{_number(figure.min)} to {_number(figure.max)}, {figure.rounds} rounds</title></rect>",
        f'<path class="whisker" d="M{least:.1f} {middle:.1f}H{most:.1f}"/>',
        f'<text x="{max(x, most) + 8:.1f}" y="{middle + 4:.1f}">{_number(figure.value)}</text>',
    ]


def _group_of(figure: Figure, figures: Sequence[Figure]) -> int:
    """Return the index of the first figure that has the benchmark and the unit of `figure`."""
    mine = figure.name.partition(".")[0], figure.unit
    return next(
        place
        for place, each in enumerate(figures)
        if (each.name.partition(".")[0], each.unit) == mine
    )


def _wrapped(text: str, width: int = 130) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _number(value: float) -> str:
    return number(round(value) if abs(value) >= 1000 else value)
