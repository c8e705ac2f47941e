"""Bodies of refusals (429 and 503): problem details (RFC 9457), or a page for browsers.

The problem types are those of draft-ietf-httpapi-ratelimit-headers: `quota-exceeded` with 429 when
a limit refused, and `temporary-reduced-capacity` with 503 when no node could decide and the rule
has `on_failure: deny`.
"""

import json
from collections.abc import Callable
from html import escape
from typing import TypeAlias

from msgspec import Struct

from ringfence.client.decision import Decision
from ringfence.http.headers import outage_of, retry_after_seconds, violated_policies

__all__ = [
    "PROBLEM_JSON",
    "Body",
    "Refused",
    "Template",
    "prefers_html",
    "refused_body",
]

PROBLEM_JSON = "application/problem+json"
_HTML = "text/html; charset=utf-8"
_TYPES = "https://iana.org/assignments/http-problem-types#"
_EXCEEDED = "Request cannot be satisfied as assigned quota has been exceeded"
_REDUCED = "Request cannot be satisfied due to temporary server capacity constraints"

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{heading}</title>
<style>
body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto }}
body {{ padding: 0 1rem }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd }} }}
</style>
</head>
<body>
<h1>{heading}</h1>
<p>{detail}</p>
</body>
</html>
"""


class Refused(Struct, frozen=True):
    """Facts about a refused request from which its response body is made."""

    status: int
    """429, or 503 when no node could decide and the rule has `on_failure: deny`."""
    title: str
    detail: str
    problem_type: str
    retry_after: int | None
    """Whole seconds, at least 1; None when a later request would fail, too."""
    policies: tuple[str, ...]
    """Names of the limits that refused."""
    wants_html: bool
    decision: Decision

    @classmethod
    def of(cls, decision: Decision, accept: str | None = None) -> "Refused":
        """Collect the facts about a denial from its decision, for a client that sent this
        `Accept` header."""
        wait = retry_after_seconds(decision)
        is_outage = outage_of(decision) == "deny"
        return cls(
            503 if is_outage else 429,
            _REDUCED if is_outage else _EXCEEDED,
            _detail(wait),
            _TYPES + ("temporary-reduced-capacity" if is_outage else "quota-exceeded"),
            wait,
            tuple(violated_policies(decision)),
            prefers_html(accept),
            decision,
        )

    def as_problem(self) -> dict[str, object]:
        """Return the refusal as the fields of a problem details object (RFC 9457)."""
        problem: dict[str, object] = {
            "type": self.problem_type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "violated-policies": list(self.policies),
        }
        if self.retry_after is not None:
            problem["retry-after"] = self.retry_after
        return problem


class Body(Struct, frozen=True):
    """Encoded response body and its content type."""

    content_type: str
    content: bytes


Template: TypeAlias = Callable[[Refused], Body | str | None]
"""Makes the body of a refusal. Text is an HTML page; None selects the default body."""


def refused_body(refused: Refused, template: Template | None = None) -> Body:
    """Create the body of a refusal.

    The application's template makes the body if there is one. Otherwise browsers get HTML, and
    programs get problem details.
    """
    made = None if template is None else template(refused)
    if isinstance(made, Body):
        return made
    if made is None and not refused.wants_html:
        return Body(PROBLEM_JSON, json.dumps(refused.as_problem()).encode())
    return Body(_HTML, (_page(refused) if made is None else made).encode())


def prefers_html(accept: str | None) -> bool:
    """Return whether an `Accept` header prefers HTML to JSON.

    Programs send `*/*` or no such header, and get JSON.
    """
    if not accept or "html" not in accept:
        return False
    html = json_like = 0.0
    for part in accept.split(","):
        kind, *parameters = [piece.strip().lower() for piece in part.split(";")]
        if kind in ("text/html", "application/xhtml+xml"):
            html = max(html, _quality(parameters))
        elif kind in ("application/json", PROBLEM_JSON):
            json_like = max(json_like, _quality(parameters))
    return html > json_like


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _detail(wait: int | None) -> str:
    if wait is None:
        return "Waiting will not help: the limit never admits a request like this."
    return f"Try again in {wait} second{'' if wait == 1 else 's'}."


def _page(refused: Refused) -> str:
    heading = "Too many requests" if refused.status == 429 else "Busy at the moment"
    return _PAGE.format(heading=escape(heading), detail=escape(refused.detail))
