"""Report card of a release: results of swarms, mutants and scenarios on one dated page.

The page is made from the JSON lines that the commands print, so it contains only what was measured.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from msgspec import Struct, field

from ringfence.errors import ConfigError
from simulations.reporting.plots import escape, number, share_bar
from simulations.reporting.style import STYLE

__all__ = ["Results", "render_card"]

Row: TypeAlias = Mapping[str, object]

_MAX_LISTED = 200
_MAX_REASONS = 12


class Results(Struct):
    """Rows of results by kind; each row has the name of its file."""

    swarms: list[tuple[str, Row]] = field(default_factory=list)
    mutants: list[tuple[str, Row]] = field(default_factory=list)
    runs: list[tuple[str, Row]] = field(default_factory=list)
    guided: list[tuple[str, Row]] = field(default_factory=list)

    def add(self, path: Path, lines: Iterable[str]) -> None:
        """Add the rows of one file. Raises `ConfigError` if it has no result of a known kind."""
        before = self.count
        for line in filter(None, map(str.strip, lines)):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise ConfigError(
                    f"result file {path} must contain JSON lines, got {line[:60]!r}; write it with "
                    "the option --json"
                )
            self._add_row(path.stem, row)
        if self.count == before:
            raise ConfigError(
                f"result file {path} must contain the output of `ringfence simulate` with --json: "
                "of a scenario, of swarm, or of mutants"
            )

    def _add_row(self, name: str, row: Row) -> None:
        if "run_twice" in row:
            self.swarms.append((name, row))
        elif "reached_plain" in row:
            self.guided.append((name, row))
        elif "event_hash" in row:
            self.runs.append((name, row))
        elif "survivors" in row:
            self.mutants.append((name, row))

    @property
    def count(self) -> int:
        """Number of results."""
        return len(self.swarms) + len(self.mutants) + len(self.runs) + len(self.guided)

    @property
    def seeds(self) -> int:
        """Number of runs of all swarms, guided searches and scenarios."""
        swarms = sum(int(_number(row, "seeds")) for _, row in self.swarms)
        return swarms + sum(int(_number(row, "runs")) for _, row in self.guided) + len(self.runs)

    @property
    def processor_hours(self) -> float:
        """Processor time of all swarms, guided searches and scenarios, in hours."""
        rows = (*self.swarms, *self.guided, *self.runs)
        return sum(_number(row, "cpu_s") for _, row in rows) / 3600

    @property
    def problems(self) -> list[str]:
        """Texts of all results that are not as they should be."""
        found = []
        for name, row in self.swarms:
            for key, text in (
                ("failed", "seeds violated an invariant"),
                ("differed", "seeds had two different histories"),
                ("marks_missing", "rare events never occurred"),
            ):
                if _list(row, key):
                    found.append(f"{name}: {len(_list(row, key))} {text}")
        for name, row in self.guided:
            if _number(row, "failed"):
                found.append(f"{name}: {_number(row, 'failed'):g} runs violated an invariant")
        for name, row in self.runs:
            if _list(row, "violations") and row.get("scenario") != "canary":
                count = len(_list(row, "violations"))
                found.append(f"{name}: {row['scenario']} violated an invariant {count} times")
            if row.get("scenario") == "canary" and not _list(row, "violations"):
                found.append(f"{name}: the canary, which must fail, held")
        for name, row in self.mutants:
            if _list(row, "false_alarms"):
                found.append(f"{name}: the shipped code violated an invariant")
        return found


def render_card(results: Results, version: str, date: str) -> str:
    """Return the page as HTML that is also valid XML."""
    title = f"Ringfence {version}: report card of the simulator"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(title)}</h1>\n<p>{escape(date)}</p>",
        _verdict(results),
        _swarms(results.swarms),
        _excuses(results.swarms),
        _mutants(results.mutants),
        _bounds(results.runs),
        _guided(results.guided),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(filter(None, parts))


def _verdict(results: Results) -> str:
    count = "1 run" if results.seeds == 1 else f"{results.seeds:,} runs"
    extent = f"{count} in {results.processor_hours:,.2f} processor hours"
    problems = results.problems
    if not problems:
        return f'<p class="verdict good">✓ No problem in {extent}</p>'
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return f'<div class="verdict bad">✗ Problems in {extent}<ul>{items}</ul></div>'


def _swarms(swarms: Sequence[tuple[str, Row]]) -> str:
    rows = [
        (
            name,
            str(row.get("level", "")),
            number(_number(row, "seeds")),
            number(len(_list(row, "failed"))),
            f"{_number(row, 'run_twice'):g} ({len(_list(row, 'differed'))} differed)",
            _count_of(row, "pairs", "pairs_missing"),
            share_bar(_number(row, "judged_exactly"))
            if "judged_exactly" in row
            else "not measured",
            f"{_number(row, 'cpu_s') / 3600:.2f}",
        )
        for name, row in swarms
    ]
    headings = (
        *("swarm", "level", "seeds", "violations", "run twice", "pairs of features and faults"),
        *("judged exactly", "processor hours"),
    )
    return _table("Swarms: random scenarios", headings, rows)


def _excuses(swarms: Sequence[tuple[str, Row]]) -> str:
    decisions = sum(_number(row, "decisions") for _, row in swarms)
    reasons: Counter[str] = Counter()
    for _, row in swarms:
        found = row.get("excuses")
        for reason, count in found.items() if isinstance(found, dict) else ():
            reasons[str(reason)] += int(count)
    rows = [
        (reason, number(count), share_bar(count / decisions if decisions else 0.0))
        for reason, count in reasons.most_common(_MAX_REASONS)
    ]
    return _table(
        "Decisions that were not judged exactly", ("reason", "decisions", "share of all"), rows
    )


def _mutants(mutants: Sequence[tuple[str, Row]]) -> str:
    rows = []
    for name, row in mutants:
        tried = _number(row, "applied") or _number(row, "drawn") - _number(row, "equivalent")
        score = _number(row, "found") / tried if tried else 1.0
        rows.append(
            (
                name,
                "written by the developers" if "applied" in row else "drawn at random",
                number(tried),
                number(_number(row, "found")),
                share_bar(score),
            )
        )
    table = _table(
        "Mutants: planted bugs that must be detected",
        ("sample", "origin", "mutants", "detected", "score"),
        rows,
    )
    return table + "".join(_survivors(name, row) for name, row in mutants)


def _survivors(name: str, row: Row) -> str:
    found = _list(row, "survivors")
    if not found:
        return ""
    texts = [
        str(each.get("name") or each.get("mutant")) + f": {each.get('old', '')} → {each['new']}"
        if isinstance(each, dict) and "new" in each
        else str(each.get("name") if isinstance(each, dict) else each)
        for each in found[:_MAX_LISTED]
    ]
    items = "".join(f"<li><code>{escape(text)}</code></li>" for text in texts)
    return (
        f"<details><summary>{len(found)} survivors of {escape(name)}</summary>"
        f"<ul>{items}</ul></details>"
    )


def _bounds(runs: Sequence[tuple[str, Row]]) -> str:
    rows = []
    for _, row in runs:
        figures = cast("Mapping[str, float]", row.get("figures") or {})
        place = f"{row['scenario']}, seed {row['seed']}"
        if figures.get("detection_worst_s"):
            worst, bound = figures["detection_worst_s"], figures["detection_bound_s"]
            rows.append((place, "detection of a crash (s)", *_beside(worst, bound)))
        for each in _list(row, "explained"):
            if isinstance(each, dict) and isinstance(each.get("bound"), int | float):
                rows.append((place, str(each["figure"]), *_beside(each["value"], each["bound"])))
    return _table(
        "Bounds, beside what was measured",
        ("run", "figure", "measured", "bound", "share of the bound"),
        rows,
    )


def _beside(value: float, bound: float) -> tuple[str, str, str]:
    return number(value), number(bound), share_bar(value / bound) if bound else "none allowed"


def _guided(searches: Sequence[tuple[str, Row]]) -> str:
    rows = [
        (
            name,
            str(row.get("level", "")),
            number(_number(row, "runs")),
            number(_number(row, "reached")),
            number(_number(row, "reached_plain")),
            number(len(_list(row, "only_guided"))),
        )
        for name, row in searches
    ]
    headings = (
        *("search", "level", "runs", "pairs and counters reached", "by as many drawn seeds"),
        "only by the guided search",
    )
    return _table("Guided searches", headings, rows)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a section with a table; empty without rows. The first column has the names."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{cell if cell.startswith('<') else escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<section><h2>{escape(title)}</h2><div class="wide"><table class="card">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _count_of(row: Row, met: str, missing: str) -> str:
    if met not in row:
        return "not measured"
    count = _number(row, met)
    return f"{count:g} of {count + len(_list(row, missing)):g}"


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _list(row: Row, name: str) -> list[object]:
    value = row.get(name)
    return value if isinstance(value, list) else []
