"""Plots over virtual time, as inline SVG: lines, stacked areas and rows of bars.

Decides how values become shapes. All plots of a run share one `Frame` with one width and one time
axis, so that causes and effects are aligned. Colours are classes of the page's style sheet. The
report chooses the values to plot.
"""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from simulations.reporting.outcome import Point
from simulations.scenarios.scenario import Fault

__all__ = [
    "Bar",
    "Frame",
    "escape",
    "is_drawable",
    "nothing",
    "number",
    "plot_areas",
    "plot_bars",
    "plot_lines",
    "share_bar",
    "stack",
]

_COLOURS = ("blue", "orange", "green", "purple", "red", "sky")
_DASHES = ("", "2 4", "10 4 2 4")
"""Dash patterns of the first six lines, of the next six, and of the rest."""

# Pixels. The left edge has room for a member's name, also where there are only numbers: the time
# axes of all plots have to line up.
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 1040, 170, 16, 20, 42
_LINES_HEIGHT, _BAR_HEIGHT, _ROW_HEIGHT = 190, 12, 17
_FEWEST_HEIGHT = 76
_CHARACTER = 7  # Height of a character of the vertical label, which must not be cut.

_NOT_TEXT = re.compile("[^\t\n -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Escape `text` for HTML and XML, and remove characters that XML forbids."""
    visible = _NOT_TEXT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return html.escape(visible)


def number(value: float) -> str:
    """Format a number for readers: grouped thousands, no insignificant digits."""
    if not is_drawable(value):
        return f"{value:g}"
    if float(value).is_integer() or abs(value) >= 1e6:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1e3 else f"{value:.4g}"


def share_bar(share: float) -> str:
    """Return a share as a bar and a percentage, in HTML."""
    width = 100 * min(1.0, max(0.0, share))
    return (
        f'<span class="meter"><span style="width:{width:.1f}%"></span></span> {100 * share:.1f} %'
    )


def is_drawable(value: float) -> bool:
    """Return whether a value can be drawn: finite, and safe to scale and to sum."""
    return abs(value) < 1e15


class Bar(Struct, frozen=True):
    """One bar in a row of a bar plot."""

    start: float
    end: float | None
    """None for an instant, which is drawn as a diamond."""
    about: str
    """Tooltip text."""
    colour: str
    label: str = ""
    """Label, truncated when the bar is too short."""
    is_thin: bool = False


class Frame(Struct, frozen=True):
    """Common size, time axis and faults of all plots of a run."""

    start: float
    end: float
    """Later than `start`; both in seconds since the load began."""
    faults: tuple[Fault, ...]
    violations: tuple[float, ...]
    load_end: float

    def x(self, at: float) -> float:
        """Return the x coordinate of an instant, limited to the frame."""
        inside = min(max(self.start, at), self.end)
        share = (inside - self.start) / (self.end - self.start)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def draw(self, title: str, y_label: str, height: int, shapes: Iterable[str]) -> str:
        """Draw the axes, the grid and the faults, then the shapes above them."""
        bottom = _TOP + height
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        step = _step(self.end - self.start, 10)
        ticks = range(math.ceil(self.start / step), math.floor(self.end / step + 1e-9) + 1)
        parts = [
            f'<svg class="plot" viewBox="0 0 {_WIDTH} {bottom + _BOTTOM}" role="img" '
            f'aria-label="{escape(title)}">',
            *self._shades(height),
            *(_vertical("grid", self.x(tick * step), bottom) for tick in ticks),
            *(
                f'<text class="tick" x="{self.x(tick * step):.1f}" y="{bottom + 16}" '
                f'text-anchor="middle">{number(tick * step)}</text>'
                for tick in ticks
            ),
            *shapes,
            _vertical("load-end", self.x(self.load_end), bottom),
            *(_vertical("violation", x, bottom) for x in sorted(set(map(self.x, self.violations)))),
            *self._numbers(),
            f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" '
            f'height="{height}"/>',
            f'<text class="axis" x="{middle}" y="{bottom + 34}" text-anchor="middle">'
            "time since the load began (s)</text>",
            f'<text class="axis" transform="translate(14 {_TOP + height / 2:.1f}) rotate(-90)" '
            f'text-anchor="middle">{escape(y_label)}</text>',
            "</svg>",
        ]
        return "\n".join(parts)

    def legend(self) -> list[str]:
        """Return the legend of the marks in every plot: faults, violations and the end of the
        load."""
        entries = [("end of the load", '<path class="load-end" d="M9 0V10"/>')]
        if self.faults:
            shade = '<rect class="shade" width="18" height="10" opacity="0.2"/>'
            entries.append(("fault, with its number", shade))
        if self.violations:
            entries.append(("violation", '<path class="violation" d="M9 0V10"/>'))
        return [_entry(name, swatch) for name, swatch in entries]

    def _shades(self, height: int) -> list[str]:
        """Shade the times of faults, darker where several overlap; draw a fault without duration as
        a line."""
        spans = [(self.x(fault.at), self.x(_end(fault))) for fault in self.faults]
        changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        parts, depth = [], 0
        for (x, change), (following, _) in pairwise(changes):
            depth += change
            if depth and following > x:
                parts.append(
                    f'<rect class="shade" x="{x:.1f}" y="{_TOP}" width="{following - x:.1f}" '
                    f'height="{height}" opacity="{0.04 + 0.07 * min(depth, 4):.2f}"/>'
                )
        instants = sorted({start for start, end in spans if start == end})
        return [*parts, *(_vertical("instant", x, _TOP + height) for x in instants)]

    def _numbers(self) -> list[str]:
        """Number the faults above the plot; `3+` means the third fault and others shortly after
        it."""
        labels: list[tuple[float, str]] = []
        for at, n in sorted((self.x(fault.at), n) for n, fault in enumerate(self.faults, 1)):
            if labels and at - labels[-1][0] < 20:
                x, first = labels[-1]
                labels[-1] = (x, first.rstrip("+") + "+")
            else:
                labels.append((at, str(n)))
        return [
            f'<text class="fault" x="{x:.1f}" y="{_TOP - 5}" text-anchor="middle">{label}</text>'
            for x, label in labels
        ]


def stack(lines: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    """Add several curves up for a stacked plot; a missing value counts as 0."""
    kept = {name: list(filter(_has_place, points)) for name, points in lines.items()}
    heights = dict.fromkeys(sorted({at for points in kept.values() for at, _ in points}), 0.0)
    stacked = {}
    for name, points in kept.items():
        for at, value in points:
            heights[at] += value
        stacked[name] = list(heights.items())
    return stacked


def plot_lines(
    frame: Frame,
    title: str,
    about: str,
    y_label: str,
    lines: Mapping[str, Sequence[Point]],
    *,
    bounds: Mapping[str, Sequence[Point]] | None = None,
    may_be_log: bool = False,
) -> str:
    """Draw a plot with curves, and dashed curves for their bounds.

    `may_be_log` allows a logarithmic scale when most values are small.
    """
    bounds = bounds or {}
    scale = _Scale.of([*lines.values(), *bounds.values()], may_be_log=may_be_log)
    styles = ['class="line dark" stroke-dasharray="7 4"' for _ in bounds]
    for turn in range(len(lines)):
        dashes = _DASHES[turn // len(_COLOURS) % len(_DASHES)]
        styles.append(f'class="line {_colour(turn)}" stroke-dasharray="{dashes}"')
    shapes, swatches = [], []
    for style, (name, points) in zip(styles, [*bounds.items(), *lines.items()], strict=True):
        shapes.append(f'<path {style} d="{_path(frame, scale, points)}"/>')
        swatches.append(_entry(name, f'<path {style} d="M0 5H18"/>'))
    unit = f"{y_label}, log scale" if scale.is_log else y_label
    drawing = frame.draw(title, unit, _LINES_HEIGHT, [*scale.grid(), *shapes])
    return _figure(title, about, [*swatches, *frame.legend()], drawing)


def plot_areas(
    frame: Frame, title: str, about: str, y_label: str, lines: Mapping[str, Sequence[Point]]
) -> str:
    """Draw a plot with stacked areas, the first at the bottom."""
    edges = stack(lines)
    scale = _Scale.of(edges.values(), may_be_log=False)
    shapes, swatches = [], []
    floor: list[Point] = []
    for turn, (name, edge) in enumerate(edges.items()):
        outline = [*edge, *reversed(floor or [(at, 0.0) for at, _ in edge])]
        shapes.append(f'<path class="area {_colour(turn)}" d="{_path(frame, scale, outline)}"/>')
        swatches.append(_entry(name, f'<path class="area {_colour(turn)}" d="M0 0H18V10H0"/>'))
        floor = edge
    drawing = frame.draw(title, y_label, _LINES_HEIGHT, [*scale.grid(), *shapes])
    return _figure(title, about, [*swatches, *frame.legend()], drawing)


def plot_bars(
    frame: Frame,
    title: str,
    about: str,
    y_label: str,
    rows: Sequence[tuple[str, Sequence[Bar]]],
    legend: Mapping[str, str],
) -> str:
    """Draw a row of bars for each name; `legend` explains the colours."""
    shapes = []
    for index, (name, bars) in enumerate(rows):
        middle = _TOP + 4 + (index + 0.5) * _ROW_HEIGHT
        # Names differ at their ends; their beginnings name the place.
        short = name if len(name) <= 18 else f"{name[:7]}…{name[-10:]}"
        shapes.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">'
            f"{escape(short)}<title>{escape(name)}</title></text>"
        )
        shapes.extend(_bar(frame, bar, middle) for bar in bars)
    swatches = [
        _entry(name, f'<rect class="bar {colour}" width="18" height="10"/>')
        for name, colour in legend.items()
    ]
    height = max(len(rows) * _ROW_HEIGHT + 8, _FEWEST_HEIGHT, _CHARACTER * len(y_label))
    drawing = frame.draw(title, y_label, height, shapes)
    return _figure(title, about, [*swatches, *frame.legend()], drawing)


def nothing(title: str, why: str) -> str:
    """Return a text that is shown instead of a plot and explains why there is none."""
    return (
        f"<figure><figcaption><h3>{escape(title)}</h3></figcaption>"
        f'<p class="nothing">Nothing to show: {escape(why)}</p></figure>'
    )


class _Scale(Struct, frozen=True):
    """Vertical axis of a plot."""

    ticks: tuple[float, ...]
    """Ticks in order; the first and the last are the ends of the scale."""
    is_log: bool

    @classmethod
    def of(cls, lines: Iterable[Sequence[Point]], *, may_be_log: bool) -> "_Scale":
        values = [point[1] for points in lines for point in points if _has_place(point)]
        top = max(values, default=0.0)
        if may_be_log and values and min(values) > 1e-6 and top > 30 * median(values):
            high = math.ceil(math.log10(top))
            low = max(math.floor(math.log10(min(values))), high - 5)
            return cls(tuple(10.0**power for power in range(low, high + 1)), is_log=True)
        bottom = min(0.0, *values) if values else 0.0
        step = _step(max(top, 0.0) - bottom, 4)
        low, high = math.floor(bottom / step), max(math.ceil(top / step), 1)
        return cls(tuple(tick * step for tick in range(low, high + 1)), is_log=False)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_log:
            value, low, high = (math.log10(max(v, low)) for v in (value, low, high))
        return _TOP + _LINES_HEIGHT * (1 - (value - low) / (high - low))

    def grid(self) -> list[str]:
        return [
            f'<path class="grid" d="M{_LEFT} {self.y(tick):.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{self.y(tick) + 4:.1f}" text-anchor="end">'
            f"{number(tick)}</text>"
            for tick in self.ticks
        ]


def _step(extent: float, count: int) -> float:
    """Choose the distance of grid lines, 1, 2 or 5 times a power of ten, for about `count`
    lines."""
    rough = extent / count if extent > 1e-6 else 1 / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next((times * power for times in (1, 2, 5) if times * power >= rough), 10 * power)


def _end(fault: Fault) -> float:
    return fault.at if fault.until is None else max(fault.at, fault.until)


def _has_place(point: Point) -> bool:
    return is_drawable(point[0]) and is_drawable(point[1])


def _colour(turn: int) -> str:
    return _COLOURS[turn % len(_COLOURS)]


def _path(frame: Frame, scale: _Scale, points: Iterable[Point]) -> str:
    """Join points to an SVG path, with gaps where a value cannot be drawn.

    `h0` draws only the round cap of the line, so that a single point is visible.
    """
    parts, is_down = [], False
    for at, value in points:
        if not _has_place((at, value)):
            is_down = False
            continue
        place = f"{frame.x(at):.1f} {scale.y(value):.1f}"
        parts.append(f"L{place}" if is_down else f"M{place}h0")
        is_down = True
    return "".join(parts)


def _bar(frame: Frame, bar: Bar, middle: float) -> str:
    x = frame.x(bar.start)
    title = f"<title>{escape(bar.about)}</title>"
    if bar.end is None:
        d = f"M{x:.1f} {middle - 6:.1f}l6 6l-6 6l-6 -6z"
        return f'<path class="bar {bar.colour}" d="{d}">{title}</path>'
    height = 3 if bar.is_thin else _BAR_HEIGHT
    width = max(frame.x(bar.end) - x, 1.5)  # Short states must be visible, too.
    room = int((width - 8) / 6.2)
    label = bar.label if len(bar.label) <= room else f"{bar.label[: room - 1]}…" if room > 2 else ""
    return (
        f'<rect class="bar {bar.colour}" x="{x:.1f}" y="{middle - height / 2:.1f}" '
        f'width="{width:.1f}" height="{height}">{title}</rect>'
        f'<text class="label" x="{x + 4:.1f}" y="{middle + 3.5:.1f}">{escape(label)}</text>'
    )


def _vertical(kind: str, x: float, bottom: float) -> str:
    return f'<path class="{kind}" d="M{x:.1f} {_TOP}V{bottom}"/>'


def _entry(name: str, swatch: str) -> str:
    return f'<li><svg width="18" height="10" aria-hidden="true">{swatch}</svg>{escape(name)}</li>'


def _figure(title: str, about: str, legend: Iterable[str], drawing: str) -> str:
    return (
        f"<figure><figcaption><h3>{escape(title)}</h3><p>{escape(about)}</p></figcaption>\n"
        f'<ul class="legend">{"".join(legend)}</ul>\n{drawing}</figure>'
    )
