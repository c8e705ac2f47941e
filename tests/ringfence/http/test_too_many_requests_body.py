"""Response bodies of refused requests."""

import json

import pytest

from ringfence import Source
from ringfence.http import Body, Refused, prefers_html, refused_body
from tests.ringfence.http.decisions import allowed, answer, denied, rule

DAILY, BANDWIDTH = rule("daily", "1000/day"), rule("bandwidth")
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


def test_programs_get_the_problem_type_of_the_draft() -> None:
    decision = answer(denied(DAILY, 4.2), allowed(rule("other")), denied(BANDWIDTH, 1.0))

    body = refused_body(Refused.of(decision, "*/*"))

    assert body.content_type == "application/problem+json"
    assert json.loads(body.content) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Try again in 5 seconds.",
        "violated-policies": ["daily", "bandwidth"],
        "retry-after": 5,
    }


def test_a_denial_by_outage_is_a_capacity_problem() -> None:
    refused = Refused.of(answer(denied(DAILY, 1.0, source=Source.POLICY)))

    assert refused.status == 503
    assert refused.problem_type.endswith("#temporary-reduced-capacity")
    assert refused.detail == "Try again in 1 second."


def test_a_browser_gets_an_html_page() -> None:
    body = refused_body(Refused.of(answer(denied(DAILY, 4.2)), CHROME))

    assert body.content_type == "text/html; charset=utf-8"
    assert b"<h1>Too many requests</h1>\n<p>Try again in 5 seconds.</p>" in body.content


def test_the_body_states_that_a_retry_cannot_succeed() -> None:
    problem = Refused.of(answer(denied(DAILY, None))).as_problem()

    assert "retry-after" not in problem
    assert str(problem["detail"]).startswith("Waiting will not help")


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (CHROME, True),
        ("text/html", True),
        ("text/html;q=0.5, application/json", False),
        ("application/problem+json;q=0.3, text/html;q=0.4", True),
        ("application/json, text/html", False),
        ("text/html;q=nonsense", False),
        ("*/*", False),
        ("", False),
        (None, False),
    ],
)
def test_html_is_sent_to_clients_that_prefer_it_to_json(accept: str | None, html: bool) -> None:
    assert prefers_html(accept) is html


def test_a_template_can_read_the_retry_after_and_the_policies() -> None:
    refused = Refused.of(answer(denied(DAILY, 4.2)))

    body = refused_body(refused, lambda seen: f"<p>{seen.retry_after} {seen.policies[0]}</p>")

    assert body == Body("text/html; charset=utf-8", b"<p>5 daily</p>")


def test_a_template_can_return_any_body_or_none() -> None:
    refused = Refused.of(answer(denied(DAILY)))
    slow_down = Body("text/plain", b"slow down")

    assert refused_body(refused, lambda _: slow_down) is slow_down
    assert refused_body(refused, lambda _: None) == refused_body(refused)
