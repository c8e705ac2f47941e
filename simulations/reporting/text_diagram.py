"""Sequence diagram of a story as text: one column per place, one row per step."""

from simulations.reporting.story import CLIENTS, Step, Story

__all__ = ["draw_text"]

_WIDTH = 9
"""Characters of each column."""
_MARKS = {"allowed": "●", "denied": "○", "fault": "✗", "end": "◇", "state": "◆", "violation": "!"}


def draw_text(story: Story) -> list[str]:
    """Draw the sequence diagram of a story as lines of text."""
    places = {lane: at * _WIDTH + _WIDTH // 2 for at, lane in enumerate(story.lanes)}
    heading = "".join(lane.center(_WIDTH) for lane in story.lanes)
    lines = [f"{'':14}{heading}".rstrip()]
    for number, step in enumerate(story.steps, 1):
        row = _row(step, places, len(story.lanes) * _WIDTH)
        lines.append(f"{number:3} {step.at:7.2f} s {row}  {_label(step)}".rstrip())
    return lines


def _row(step: Step, places: dict[str, int], width: int) -> str:
    if step.kind == "violation":
        return "═" * width
    row = [" "] * width
    for place in places.values():
        row[place] = "│"
    lanes = [lane for lane in step.lanes if lane in places]
    if step.kind in ("allowed", "denied") and len(lanes) > 1:
        begin, *ends = [places[lane] for lane in lanes]
        row[begin] = "├"
        row[begin + 1 : max(ends)] = ["─"] * (max(ends) - begin - 1)
        for end in ends:
            row[end - 1 : end + 1] = ["▶", _MARKS[step.kind]]
    else:
        for lane in lanes or [each for each in places if each != CLIENTS]:
            row[places[lane]] = _MARKS[step.kind]
    return "".join(row)


def _label(step: Step) -> str:
    if step.kind == "violation":
        return step.text.partition(":")[0]
    if step.kind in ("fault", "end", "state"):
        return step.text.partition(" (")[0].rstrip(".")
    word = step.kind
    return f"{word}, {step.count} times" if step.count > 1 else word
