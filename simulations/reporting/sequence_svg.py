"""Sequence diagram of a story as inline SVG: one column per place, one row per step."""

from simulations.reporting.plots import escape
from simulations.reporting.story import CLIENTS, Step, Story

__all__ = ["draw_svg"]

_LEFT, _COLUMN, _ROW, _TOP = 44, 92, 30, 42


def draw_svg(story: Story) -> str:
    """Draw the sequence diagram of a story."""
    places = {lane: _LEFT + (at + 0.5) * _COLUMN for at, lane in enumerate(story.lanes)}
    width = _LEFT + len(story.lanes) * _COLUMN
    height = _TOP + len(story.steps) * _ROW + 8
    shapes = [
        f'<path class="lane" d="M{x:.0f} {_TOP - 8}V{height - 4}"/>'
        f'<rect class="head" x="{x - 38:.0f}" y="8" width="76" height="24" rx="5"/>'
        f'<text x="{x:.0f}" y="24" text-anchor="middle">{escape(lane)}</text>'
        for lane, x in places.items()
    ]
    for number, step in enumerate(story.steps):
        y = _TOP + (number + 0.5) * _ROW
        shapes.append(f"<g><title>{escape(step.text)}</title>")
        shapes.append(
            f'<text class="number" x="30" y="{y + 4:.0f}" text-anchor="end">{number + 1}</text>'
        )
        shapes += _step(step, places, y, width)
        shapes.append("</g>")
    return (
        f'<svg class="sequence" width="{width}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(story.title)}">{"".join(shapes)}</svg>'
    )


def _step(step: Step, places: dict[str, float], y: float, width: int) -> list[str]:
    if step.kind == "violation":
        return [
            f'<rect class="law" x="{_LEFT}" y="{y - 12:.0f}" width="{width - _LEFT}" '
            f'height="24" rx="4"/><text x="{(_LEFT + width) / 2:.0f}" y="{y + 4:.0f}" '
            f'text-anchor="middle">{escape(step.text.partition(":")[0])}</text>'
        ]
    lanes = [lane for lane in step.lanes if lane in places]
    if step.kind in ("allowed", "denied"):
        return _request(step, lanes, places, y)
    return [
        _mark(step.kind, places[lane], y)
        for lane in lanes or [each for each in places if each != CLIENTS]
    ]


def _request(step: Step, lanes: list[str], places: dict[str, float], y: float) -> list[str]:
    begin = places.get(CLIENTS, _LEFT)
    ends = [places[lane] for lane in lanes[1:]] or [begin]
    end = max(ends)
    parts = [f'<circle class="dot {step.kind}" cx="{x:.0f}" cy="{y:.0f}" r="5"/>' for x in ends]
    if end > begin:
        parts.insert(0, f'<path class="arrow {step.kind}" d="M{begin:.0f} {y:.0f}H{end - 6:.0f}"/>')
    if step.count > 1:
        middle = (begin + max(end, begin + 40)) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{y - 5:.0f}" text-anchor="middle">{step.count} times</text>'
        )
    return parts


def _mark(kind: str, x: float, y: float) -> str:
    if kind == "fault":
        return f'<path class="cross" d="M{x - 6:.0f} {y - 6:.0f}l12 12m0 -12l-12 12"/>'
    colour = "back" if kind == "end" else "takes"
    return f'<path class="{colour}" d="M{x:.0f} {y - 7:.0f}l7 7l-7 7l-7 -7z"/>'
