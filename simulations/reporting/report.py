"""HTML report of one run: parameters, verdict, and events over time.

Decides the content and the texts; `simulations.reporting.plots` draws the plots. The page needs no
script and no other file, so it can be mailed, archived and compared. Equal outcomes give equal
bytes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from simulations.reporting.explanations import explanations
from simulations.reporting.holders import holder_plots
from simulations.reporting.outcome import Outcome, Point, Span, Violation
from simulations.reporting.plots import (
    Bar,
    Frame,
    escape,
    is_drawable,
    nothing,
    number,
    plot_areas,
    plot_bars,
    plot_lines,
    stack,
)
from simulations.reporting.sections import (
    explained_section,
    judged_section,
    nearby_section,
    story_sections,
)
from simulations.reporting.style import STYLE
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.rule_changes import replay_command

__all__ = ["render", "write_report"]

_MAX_MEMBERS = 40
_MAX_VIOLATIONS = 100
_MAX_LANES = 8
_STATES = {
    "alive": "green",
    "joining": "sky",
    "suspect": "orange",
    "dead": "red",
    "leaving": "purple",
    "left": "grey",
}


def write_report(outcome: Outcome, path: Path) -> None:
    """Write the report page of a run to `path`, whose folder must exist."""
    path.write_text(render(outcome), encoding="utf-8", newline="\n")


def render(outcome: Outcome) -> str:
    """Return the report page of a run as HTML that is also valid XML."""
    scenario = outcome.scenario
    frame = _frame(outcome)
    plots = (
        _fault_plot(outcome, frame),
        *holder_plots(outcome, frame),
        _admitted_plot(outcome, frame),
        _over_plot(outcome, frame),
        _staleness_plot(outcome, frame),
        _member_plot(outcome, frame),
        _source_plot(outcome, frame),
        _latency_plot(outcome, frame),
    )
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(scenario.name)}, seed {outcome.seed}</title>",
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(scenario.name)}</h1>\n<p>{escape(scenario.about)}</p>",
        _verdict(outcome),
        _guide(outcome),
        *story_sections(outcome),
        nearby_section(outcome),
        _facts(outcome),
        explained_section(outcome),
        judged_section(outcome),
        '<div class="columns">',
        _table("Figures", ((name, number(value)) for name, value in outcome.figures.items())),
        _table("Marks: rare events, and how often each happened", _marks(outcome)),
        _faults(outcome),
        "</div>",
        "<h2>What happened when</h2>",
        *plots,
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _verdict(outcome: Outcome) -> str:
    violations = outcome.violations
    if not violations:
        excess = explanations(outcome)
        if not excess:
            return '<p class="verdict good">✓ All invariants held</p>'
        figures = ", ".join(f"{number(each.value)} {each.figure}" for each in excess)
        return (
            '<div class="verdict good">✓ All invariants held<ul><li>This run has '
            f"{escape(figures)}. The invariants allow that much, for the reasons "
            '<a href="#explained">below</a>.</li></ul></div>'
        )
    count = "1 violation" if len(violations) == 1 else f"{len(violations):,} violations"
    by_law: dict[str, list[Violation]] = {}
    for violation in violations:
        by_law.setdefault(violation.property, []).append(violation)
    return f'<div class="verdict bad">✗ {count}{"".join(map(_law, by_law.values()))}</div>'


def _law(violations: Sequence[Violation]) -> str:
    """Return the violations of one invariant; those after the first one can be unfolded."""
    items = [
        f"<li><b>{escape(each.property)}</b> at {number(each.at)} s: {escape(each.text)}</li>"
        for each in violations[:_MAX_VIOLATIONS]
    ]
    if len(violations) > _MAX_VIOLATIONS:
        items.append(f"<li>and {len(violations) - _MAX_VIOLATIONS:,} more</li>")
    first, *rest = items
    if not rest:
        return f"<ul>{first}</ul>"
    more = f"{len(violations) - 1:,} more of {escape(violations[0].property)}"
    folded = f"<details><summary>{more}</summary><ul>{''.join(rest)}</ul></details>"
    return f"<ul>{first}</ul>{folded}"


def _guide(outcome: Outcome) -> str:
    """Return an introduction that explains how to read the report."""
    name = outcome.scenario.name
    about = ""
    if name in SCENARIOS:
        shipped = replay_command(SCENARIOS[name], SCENARIOS[name], outcome.seed)
        change = "" if outcome.command == shipped else ", without the changes of this run"
        about = f" <b>docs/operate/scenarios/{name}.md</b> describes the scenario{change}."
    return (
        '<p class="guide">Look at the verdict first, then at <i>Faults</i> and at what each plot '
        f"does while a fault lasts: all plots share one time axis. In the source code,{about} "
        "<b>docs/operate/simulation.md</b> explains the invariants (section “Invariants”) and the "
        "marks (section “Swarm”).</p>"
    )


def _facts(outcome: Outcome) -> str:
    scenario = outcome.scenario
    world = (
        f"{_count(scenario.nodes, 'node')} in {_count(scenario.datacenters, 'data center')}, "
        f"level {scenario.level}, {scenario.network.latency} network, "
        f"{number(scenario.seconds)} s of load and {number(scenario.calm)} s of calm"
    )
    speed = ""
    if outcome.real_s > 0 and is_drawable(outcome.virtual_s):
        speed = f" ({number(round(outcome.virtual_s / outcome.real_s, 1))} times as fast)"
    seconds = f"{number(outcome.virtual_s)} s virtual, {number(outcome.real_s)} s real{speed}"
    rows = (
        ("Seed", f"<code>{outcome.seed}</code>"),
        ("Replay", f'<code class="command">{escape(outcome.command)}</code>'),
        ("Event hash", f"<code>{escape(outcome.event_hash) or 'none'}</code>"),
        ("Time", escape(seconds)),
        ("World", escape(world)),
    )
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{value}</dd>' for name, value in rows)}</dl>"


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [
        f'<tr><th scope="row">{escape(_words(name))}</th><td>{escape(value)}</td></tr>'
        for name, value in rows
    ]
    body = f"<table>{''.join(lines)}</table>" if lines else '<p class="nothing">None</p>'
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _marks(outcome: Outcome) -> list[tuple[str, str]]:
    """List the rare events of the run, the rarest first, because a search for useful seeds needs
    those."""
    marks = sorted(outcome.marks.items(), key=lambda mark: (mark[1], mark[0]))
    return [(name, number(count)) for name, count in marks]


def _faults(outcome: Outcome) -> str:
    items = "".join(f"<li>{escape(str(fault))}</li>" for fault in outcome.faults)
    body = f"<ol>{items}</ol>" if items else '<p class="nothing">None</p>'
    return f"<section><h2>Faults</h2>{body}</section>"


def _frame(outcome: Outcome) -> Frame:
    """Return the common frame of the plots; it covers all recorded times, and the planned end if
    reached."""
    series, scenario = outcome.series, outcome.scenario
    lines = chain(
        series.admitted.values(),
        (series.over, series.over_bound),
        series.staleness_ms.values(),
        series.sources.values(),
        series.latency_ms.values(),
    )
    times = [0.0, min(outcome.virtual_s, scenario.seconds + scenario.calm)]
    times += [at for points in lines for at, _ in points]
    times += [at for span in series.members for at in (span.start, span.end)]
    times += [fault.at for fault in outcome.faults]
    times += [violation.at for violation in outcome.violations]
    known = [at for at in times if is_drawable(at)]
    return Frame(
        start=min(known),
        end=max(known) if max(known) > min(known) + 0.001 else min(known) + 1.0,
        faults=outcome.faults,
        violations=tuple(violation.at for violation in outcome.violations),
        load_end=scenario.seconds,
    )


def _fault_plot(outcome: Outcome, frame: Frame) -> str:
    title = "Faults"
    if not outcome.faults:
        why = "no fault was applied" if outcome.scenario.faults else "the scenario has no faults"
        return nothing(title, f"{why}.")
    lanes: dict[str, list[list[Bar]]] = {}
    timed = sorted(enumerate(outcome.faults, 1), key=lambda entry: (entry[1].at, entry[0]))
    for n, fault in timed:
        args = " ".join(f"{name}={value}" for name, value in fault.args.items())
        bar = Bar(fault.at, fault.until, f"{n}. {fault}", "orange", label=f"{n} {args}".strip())
        rows = lanes.setdefault(fault.verb, [[]])
        lane = next((lane for lane in rows if not lane or _is_past(lane[-1], fault.at)), None)
        if lane is None and len(rows) < _MAX_LANES:
            rows.append(lane := [])
        (rows[-1] if lane is None else lane).append(bar)
    return plot_bars(
        frame,
        title,
        "What went wrong, and until when, one row or more per verb; a diamond is over at once, or "
        "never. Every plot below is shaded while a fault lasts, and numbered like the list above.",
        "faults",
        [
            (verb if lane is rows[0] else "", lane)
            for verb, rows in sorted(lanes.items())
            for lane in rows
        ],
        {},
    )


def _is_past(bar: Bar, at: float) -> bool:
    return (bar.start if bar.end is None else bar.end) < at


def _admitted_plot(outcome: Outcome, frame: Frame) -> str:
    title = "Admitted against the limit"
    admitted = outcome.series.admitted
    if _is_empty(*admitted.values()):
        return nothing(title, _why_no_checks(outcome, "no unit was admitted"))
    lines = {f"admitted in {name}": points for name, points in admitted.items()}
    series = outcome.series
    if len(lines) > 1 and series.is_shared:
        *_, lines["all data centers together"] = stack(admitted).values()
    limit, period = series.limit, _duration(series.period_s)
    return plot_lines(
        frame,
        title,
        f"Units of {series.key}, the most frequent key of the first rule, that were "
        f"admitted within the {period} before, the period of its limit.",
        f"units in {period}",
        lines,
        bounds={"limit": [(frame.start, limit), (frame.end, limit)]} if limit else {},
    )


def _duration(seconds: float) -> str:
    return f"{number(seconds / 3600)} h" if seconds >= 7200 else f"{number(seconds)} s"


def _over_plot(outcome: Outcome, frame: Frame) -> str:
    title = "Over-admission"
    series = outcome.series
    if _is_empty(series.over, series.over_bound):
        return nothing(title, "no key was compared with a limit during this run.")
    return plot_lines(
        frame,
        title,
        f"Units over the limit of {series.key}, and how many the stated bound allows, by the "
        "staleness that was measured and the faults that there were.",
        "over the limit (units)",
        {"over the limit": series.over},
        bounds={"stated bound": series.over_bound},
    )


def _staleness_plot(outcome: Outcome, frame: Frame) -> str:
    title = "Staleness"
    staleness = outcome.series.staleness_ms
    if _is_empty(*staleness.values()):
        alone = outcome.scenario.datacenters < 2
        why = "a single data center has no others to hear of." if alone else "no age was measured."
        return nothing(title, why)
    about = "Age of the remote counts in each data center."
    return plot_lines(frame, title, about, "age (ms)", staleness, may_be_log=True)


def _member_plot(outcome: Outcome, frame: Frame) -> str:
    title = "Members"
    rows: dict[str, list[Span]] = {}
    for span in outcome.series.members:
        rows.setdefault(span.row, []).append(span)
    if not rows:
        return nothing(title, "the run kept no record of how members were seen.")
    names, left_out = _pick_members(rows)
    if not names:
        return nothing(title, f"all {len(rows):,} members were alive throughout.")
    about = "State of each member in the view of most others, one row per member."
    if left_out:
        about += f" {left_out}"
    bars = [
        (
            name,
            [
                Bar(
                    span.start,
                    span.end,
                    f"{name}: {span.state}, {number(span.start)} to {number(span.end)} s",
                    _STATES.get(span.state, "dark"),
                    is_thin=span.state == "alive",
                )
                for span in rows[name]
            ],
        )
        for name in names
    ]
    seen = {span.state for name in names for span in rows[name]}
    legend = {state: colour for state, colour in _STATES.items() if state in seen}
    legend |= dict.fromkeys(sorted(seen - set(_STATES)), "dark")
    return plot_bars(frame, title, about, "members", bars, legend)


def _pick_members(rows: Mapping[str, list[Span]]) -> tuple[list[str], str]:
    """Choose the members whose states are drawn; return their names and a text about the omitted
    members."""
    if len(rows) <= _MAX_MEMBERS:
        return sorted(rows, key=_by_number), ""
    troubled = {
        name: sum(span.end - span.start for span in spans if span.state != "alive")
        for name, spans in rows.items()
        if any(span.state != "alive" for span in spans)
    }
    most = sorted(troubled, key=lambda name: (-troubled[name], _by_number(name)))[:_MAX_MEMBERS]
    left_out = (
        f"Left out are {len(rows) - len(most):,} of {_count(len(rows), 'member')}: "
        f"{len(rows) - len(troubled):,} that were always alive"
    )
    if len(troubled) > len(most):
        left_out += f" and {len(troubled) - len(most):,} that were not, yet for less time"
    return sorted(most, key=_by_number), f"{left_out}."


def _source_plot(outcome: Outcome, frame: Frame) -> str:
    title = "Decisions by source"
    sources = outcome.series.sources
    if _is_empty(*sources.values()):
        return nothing(title, _why_no_checks(outcome, "nothing was decided"))
    about = "Decisions by source, stacked: the upper edge is their total."
    return plot_areas(frame, title, about, "decisions per second (1/s)", sources)


def _latency_plot(outcome: Outcome, frame: Frame) -> str:
    title = "Latency of checks"
    latency = outcome.series.latency_ms
    if _is_empty(*latency.values()):
        return nothing(title, _why_no_checks(outcome, "no check was answered"))
    about = "Virtual time from check to answer, of the checks of each second."
    return plot_lines(frame, title, about, "latency (ms)", latency, may_be_log=True)


def _is_empty(*lines: Sequence[Point]) -> bool:
    return not any(is_drawable(at) and is_drawable(value) for line in lines for at, value in line)


def _why_no_checks(outcome: Outcome, what: str) -> str:
    loads = outcome.scenario.loads
    if not any(load.per_second > 0 for load in loads):
        return f"{what}, for the scenario has no load."
    return f"{what}, or the run ended before its first second was over."


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts n2 before n10."""
    return [(len(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]
