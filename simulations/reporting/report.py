"""HTML report of one run: parameters, verdict, and events over time.

Decides the content and the texts; `simulations.reporting.plots` draws the plots. The page needs no
script and no other file, so it can be mailed, archived and compared. Equal outcomes give equal
bytes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from simulations.reporting.outcome import Outcome, Point, Span
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
from simulations.scenarios.catalog import SCENARIOS

__all__ = ["STYLE", "render", "write_report"]

_MAX_MEMBERS = 40
_MAX_VIOLATIONS = 100
_MAX_LANES = 8
_EXCUSED = {
    "over_admitted_worst_key": "units over the limit of the worst key",
    "lost": "hits lost",
    "counted_twice": "hits counted twice",
    "by_policy": "checks that no node decided in time",
}
"""Texts of the figures that faults may excuse."""
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
        _facts(outcome),
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
        return '<p class="verdict good">✓ All invariants held</p>'
    count = "1 violation" if len(violations) == 1 else f"{len(violations):,} violations"
    items = [
        f"<li><b>{escape(violation.property)}</b> at {number(violation.at)} s: "
        f"{escape(violation.text)}</li>"
        for violation in violations[:_MAX_VIOLATIONS]
    ]
    if len(violations) > _MAX_VIOLATIONS:
        items.append(f"<li>and {len(violations) - _MAX_VIOLATIONS:,} more</li>")
    return f'<div class="verdict bad">✗ {count}<ul>{"".join(items)}</ul></div>'


def _guide(outcome: Outcome) -> str:
    """Return an introduction that explains how to read the report.

    It explains excess units that the faults permit, although the verdict is good.
    """
    name = outcome.scenario.name
    page = (
        f"docs/operate/scenarios/{name}.md" if name in SCENARIOS else "docs/operate/simulation.md"
    )
    sentences = [
        "Look at the verdict first, then at <i>Faults</i> and at what each plot does while a fault "
        "lasts: all plots share one time axis. "
        f"<b>{page}</b> says what this run shows; <b>docs/operate/simulation.md</b> explains the "
        "invariants (section “Invariants”) and the marks (section “Swarm”).",
    ]
    found = {name: outcome.figures.get(name, 0) for name in _EXCUSED}
    excess = [f"{number(count)} {_EXCUSED[name]}" for name, count in found.items() if count > 0]
    if excess and not outcome.violations:
        sentences.append(
            f"This run has {', '.join(excess)}, and the invariants still hold: faults, and "
            "counts that reach other data centers late, excuse so much for the keys, data centers "
            "and times that they concern, and no more happened. "
            "The figures are those of the worst key and of all keys; the plots <i>Admitted against "
            "the limit</i> and <i>Over-admission</i> follow one key, the one asked for most, which "
            "may have nothing over its limit."
        )
    return "".join(f'<p class="guide">{sentence}</p>' for sentence in sentences)


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
        f"Units admitted within the {period} before, the period of the limit, of the key that was "
        "asked for most.",
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
        "Units over the limit of that key, and how many the stated bound allows, by the staleness "
        "that was measured and the faults that there were.",
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


STYLE = """
:root { color-scheme: light dark; --paper: #fff; --text: #1b1f24; --faint: #5b6570;
  --line: #dfe3e8; --panel: #f5f7f9; --good: #00694d; --bad: #a83200; --alarm: #d40000;
  --blue: #0072b2; --orange: #e69f00; --green: #009e73; --purple: #cc79a7; --red: #d55e00;
  --sky: #56b4e9; --grey: #999; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --text: #e6e9ed; --faint: #a3adb8;
  --line: #303842; --panel: #1d232a; --alarm: #ff6b6b; --blue: #2f97d8; --grey: #7d858e; } }
body { margin: 0; background: var(--paper); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { margin: 0; font-size: 28px; overflow-wrap: anywhere; }
h1 + p { margin: 4px 0 16px; color: var(--faint); font-size: 17px; }
h2 { margin: 24px 0 8px; font-size: 17px; }
h3 { margin: 0; font-size: 15px; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.verdict { border-radius: 6px; padding: 10px 16px; color: #fff; font-size: 17px; font-weight: 600; }
.verdict ul { margin: 6px 0 0; padding-left: 20px; font-size: 14px; font-weight: 400; }
.verdict li { white-space: pre-wrap; overflow-wrap: anywhere; }
.good { background: var(--good); } .bad { background: var(--bad); }
.guide { margin: 12px 0 0; color: var(--faint); font-size: 14px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 16px 0; }
dt { color: var(--faint); } dd { margin: 0; }
.command { display: block; padding: 6px 10px; border-radius: 4px; background: var(--panel);
  user-select: all; white-space: pre-wrap; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr));
  gap: 0 36px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
tr { border-bottom: 1px solid var(--line); }
th { text-align: left; font-weight: 400; padding: 3px 12px 3px 0; }
td { text-align: right; font-variant-numeric: tabular-nums; }
ol { margin: 0; padding-left: 26px; font-size: 14px; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } thead { color: var(--faint); }
.wide th, .wide td { padding: 3px 10px 3px 0; white-space: nowrap; }
.nothing { margin: 0; color: var(--faint); font-style: italic; }
figure { margin: 0 0 26px; overflow-x: auto; }
figcaption p { margin: 0; color: var(--faint); font-size: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 0 18px; margin: 4px 0 2px; padding: 0;
  list-style: none; font-size: 13px; }
.legend svg { margin-right: 6px; overflow: visible; }
.plot { display: block; width: 100%; min-width: 640px; font-size: 12px; }
.plot text { fill: var(--faint); } .plot .axis { fill: var(--text); }
.plot .label { fill: #000; font-size: 10px; pointer-events: none; }
.plot .fault { font-size: 10px; }
.frame { fill: none; stroke: var(--faint); }
.grid { stroke: var(--line); }
.shade { fill: var(--faint); } .instant { stroke: var(--faint); opacity: 0.5; }
.load-end { stroke: var(--faint); stroke-dasharray: 2 3; }
.violation { stroke: var(--alarm); stroke-width: 1.5; }
.line { fill: none; stroke: var(--ink); stroke-width: 2; stroke-linecap: round;
  stroke-linejoin: round; }
.area { fill: var(--ink); opacity: 0.8; } .bar { fill: var(--ink); }
.blue { --ink: var(--blue); } .orange { --ink: var(--orange); } .green { --ink: var(--green); }
.purple { --ink: var(--purple); } .red { --ink: var(--red); } .sky { --ink: var(--sky); }
.grey { --ink: var(--grey); } .dark { --ink: var(--text); }
"""
