"""Plots of the nodes that held the shard of a key, and of the state of the shard at each node."""

from simulations.reporting.outcome import KeyHistory, Outcome
from simulations.reporting.plots import Bar, Frame, number, plot_bars
from simulations.reporting.story import STATE_TEXTS

__all__ = ["holder_plots"]

_MAX_PLOTS = 3
_COLOURS = {
    "OWNED": "green",
    "FRESH": "sky",
    "COVERED": "orange",
    "COVERED_BLIND": "red",
    "RETAKEN": "purple",
    "RETAKEN_BLIND": "blue",
    "SENT": "grey",
    "MOVED": "grey",
}
_THIN = ("SENT", "MOVED")
"""States in which a node does not decide."""


def holder_plots(outcome: Outcome, frame: Frame) -> list[str]:
    """Return a plot for each key that a violation names, otherwise for each recorded key."""
    judged = [each for each in outcome.histories if each.is_judged]
    return [_plot(history, frame) for history in (judged or outcome.histories)[:_MAX_PLOTS]]


def _plot(history: KeyHistory, frame: Frame) -> str:
    rows: dict[str, list[Bar]] = {}
    for span in history.states:
        about = (
            f"{span.row} {STATE_TEXTS.get(span.state, span.state)}, "
            f"{number(max(span.start, frame.start))} to {number(span.end)} s"
        )
        colour = _COLOURS.get(span.state, "dark")
        bar = Bar(span.start, span.end, about, colour, is_thin=span.state in _THIN)
        if span.end > frame.start:
            rows.setdefault(span.row, []).append(bar)
    seen = {span.state for span in history.states if span.end > frame.start}
    return plot_bars(
        frame,
        f"Who decided for {history.name}",
        f"State of the key's shard at each node. Limit: {history.limit}. A thin bar is a node "
        "that has transferred the shard and does not decide.",
        "nodes",
        sorted(rows.items(), key=lambda row: (len(row[0]), row[0])),
        {
            f"{state}: {STATE_TEXTS[state]}": colour
            for state, colour in _COLOURS.items()
            if state in seen
        },
    )
