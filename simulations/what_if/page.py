"""HTML page on the effect of rules on an access log: denials by rule and client, effect of late
counts.

The page needs no script and no other file.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ringfence.rules.periods import format_period
from simulations.reporting.plots import escape, number
from simulations.reporting.style import STYLE
from simulations.what_if.figures import WhatIf

__all__ = ["render_what_if", "write_what_if"]


def write_what_if(answer: WhatIf, log: str, path: Path) -> None:
    """Write the what-if report page to `path`, whose folder must exist."""
    path.write_text(render_what_if(answer, log), encoding="utf-8", newline="\n")


def render_what_if(answer: WhatIf, log: str) -> str:
    """Return the what-if report page as HTML that is also valid XML."""
    places = "one data center" if answer.datacenters == 1 else f"{answer.datacenters} data centers"
    where = "one engine" if answer.exact else places
    late = ""
    if answer.staleness_ms:
        late = (
            f" Counts of other data centers were up to {number(answer.staleness_ms)} ms old; "
            "“by exact counting” is what one limiter that sees everything would have denied."
        )
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>What if: {escape(log)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
        f"<h1>What if: {escape(log)}</h1>",
        f"<p>{answer.requests:,} requests, decided by {where}: {answer.denied:,} denied"
        f" ({number(100 * answer.denied / max(1, answer.requests))} %).</p>",
        '<p class="guide">Look first at the rules: a rule that was never checked has no effect on '
        "this log. Then see whom they denied, and whether those are the clients you mean."
        f"{late} Exact counting uses the reference engine of the limiter, one counter per key. "
        "<b>docs/operate/simulation.md</b> (section “What if”) explains every column.</p>",
        _table("Rules", _RULES, map(_cells, _rule_rows(answer))),
        _table("Most throttled clients", _CLIENTS, map(_cells, _client_rows(answer))),
        _table("Errors of these decisions", _ERRORS, map(_cells, _error_rows(answer))),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


_RULES = (
    *("rule", "limit", "checks", "denied", "by exact counting", "wrongly allowed"),
    *("wrongly denied", "furthest over", "bound"),
)
_CLIENTS = ("client", "checks", "denied", "by exact counting", "first", "last", "rule")
_ERRORS = (
    *("against", "requests", "wrongly allowed", "wrongly limited", "mean difference"),
    *("near the limit", "counters over", "furthest over"),
)


def _rule_rows(answer: WhatIf) -> Iterable[Sequence[str | float]]:
    for rule in answer.rules:
        worst = rule.worst
        yield (
            rule.rule,
            f"{rule.amount}/{format_period(rule.period_ns)} {rule.algorithm}",
            *(rule.checks, rule.denied, rule.denied_exact),
            *(rule.wrongly_allowed, rule.wrongly_denied),
            "-" if worst is None else f"{worst.excess} ({worst.client})",
            "-" if worst is None else worst.bound,
        )


def _client_rows(answer: WhatIf) -> Iterable[Sequence[str | float]]:
    rows = answer.to_json()["throttled"]
    assert isinstance(rows, list)
    for row in rows:
        yield [
            row[name]
            for name in ("client", "checks", "denied", "denied_exact", "first", "last", "rule")
        ]


def _error_rows(answer: WhatIf) -> Iterable[Sequence[str | float]]:
    for errors in answer.errors:
        yield (
            errors.against,
            *(errors.requests, errors.wrongly_allowed, errors.wrongly_limited),
            f"{100 * errors.mean_difference:.2f} %",
            f"{100 * errors.near_mean_difference:.2f} %",
            errors.over,
            f"{100 * errors.max_over:.2f} %",
        )


def _cells(row: Sequence[str | float]) -> str:
    first, *others = [each if isinstance(each, str) else number(each) for each in row]
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'


def _table(title: str, headings: Sequence[str], rows: Iterable[str]) -> str:
    first, *others = headings
    head = f"<th>{escape(first)}</th>" + "".join(f"<td>{escape(name)}</td>" for name in others)
    body = "".join(rows) or f'<tr><td colspan="{len(headings)}">None</td></tr>'
    return (
        f'<section class="wide"><h2>{escape(title)}</h2>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )
