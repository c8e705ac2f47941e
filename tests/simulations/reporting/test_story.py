"""Stories of violations: order, grouping, and the sequence diagram."""

from simulations.reporting.outcome import (
    KeyHistory,
    Outcome,
    OwnershipChange,
    Request,
    Span,
    Violation,
)
from simulations.reporting.story import build_story
from simulations.reporting.text_diagram import draw_text
from simulations.scenarios.scenario import Fault, Scenario

TEXT = "exact=k0: 2 units in 86400 s, at most 1 may pass"


def request(at: float, node: str, *, allowed: bool = True, source: str = "owner") -> Request:
    return Request(at, at + 0.01, "client-0", 1, allowed, source, (node,))


def outcome(*requests: Request, faults: tuple[Fault, ...] = ()) -> Outcome:
    found = Outcome(Scenario("mine", "about"), 7, "command", faults=faults)
    found.violations = [
        Violation("convergence", 60.0, "views differ"),
        Violation("over_admission", 1.0, TEXT),
    ]
    found.histories = [
        KeyHistory(
            "exact",
            "k0",
            "1 in 86400 s, fixed_window",
            86_400.0,
            is_judged=True,
            requests=[*requests],
            states=[
                Span(-1.0, 3.0, "n2", "OWNED"),
                Span(3.2, 20.0, "n1", "COVERED_BLIND"),
            ],
            changes=[
                OwnershipChange(-1.0, "n2", "TRANSFER", "ABSENT", "OWNED"),
                OwnershipChange(3.0, "n2", "node ended", "", ""),
                OwnershipChange(3.2, "n1", "TAKE_OVER_BLIND", "ABSENT", "COVERED_BLIND"),
                OwnershipChange(9.0, "n1", "SEND", "COVERED_BLIND", "SENT"),
            ],
        )
    ]
    return found


CRASH = Fault(3.0, "crash", 8.0, {"node": "n2"})


def test_a_story_has_faults_decisions_and_takeovers_in_order_of_time() -> None:
    story = build_story(
        outcome(request(1.0, "n2"), request(4.0, "n1", source="standby"), faults=(CRASH,))
    )

    assert story.lines() == [
        "mine, seed 7: over_admission",
        "exact=k0 has a limit of 1 in 86400 s, fixed_window. At the start: n2 owns the shard and "
        "has its counters.",
        "  1.    1.01 s  n2 (owner) allows a check of client-0 for exact=k0.",
        "  2.    3.00 s  n2 crashes.",
        "  3.    3.20 s  n1 decides for the unreachable owner, without a replica "
        "(COVERED_BLIND, by TAKE_OVER_BLIND).",
        "  4.    4.01 s  n1 (standby) allows a check of client-0 for exact=k0.",
        f"  5.    4.01 s  over_admission: {TEXT}",
    ]


def test_similar_requests_are_one_step_unless_something_happens_between() -> None:
    checks = [request(at / 10, "n2") for at in range(10, 40)]
    story = build_story(outcome(*checks, request(5.0, "n2", allowed=False), faults=(CRASH,)))

    assert [(step.kind, step.count) for step in story.steps] == [
        ("allowed", 20),
        ("fault", 1),
        ("allowed", 2),
        ("state", 1),
        ("allowed", 8),
        ("violation", 1),
    ]


def test_a_long_story_combines_requests_before_it_leaves_anything_out() -> None:
    checks = [request(at / 10, "n2", allowed=at % 2 == 0) for at in range(40)]
    cached = [request(at / 10, "", allowed=False, source="cache") for at in range(40)]
    steps = build_story(outcome(*checks, *cached, faults=(CRASH,))).steps

    assert [(step.kind, step.count) for step in steps] == [
        ("allowed", 15),
        ("denied", 15),
        ("fault", 1),
        ("allowed", 1),
        ("denied", 1),
        ("state", 1),
        ("allowed", 4),
        ("denied", 3),
        ("violation", 1),
    ]


def test_a_story_names_all_nodes_that_can_have_decided() -> None:
    both = Request(1.0, 1.01, "client-0", 1, allowed=True, source="owner", decided_by=("n1", "n2"))
    story = build_story(outcome(both))

    assert story.steps[0].text == "n1 or n2 (owner) allows a check of client-0 for exact=k0."
    assert draw_text(story)[1] == "  1    1.01 s     ├───────▶●───────▶●      allowed"


def test_a_story_that_is_still_too_long_keeps_its_last_ten_steps() -> None:
    faults = tuple(Fault(at / 2, "reset", None, {"node": "n1"}) for at in range(35))
    story = build_story(outcome(request(18.0, "n2"), faults=faults))

    assert len(story.steps) == 10
    assert story.steps[-1].kind == "violation"
    assert story.left_out > 20
    assert f"({story.left_out} earlier steps are left out)" in "\n".join(story.lines())


def test_a_violation_without_a_key_has_the_faults_alone_in_order_of_time() -> None:
    pause = Fault(4.0, "pause", 5.0, {"node": "n1,n2"})
    found = outcome(faults=(CRASH, pause))
    found.violations = found.violations[:1]

    steps = build_story(found).steps

    assert [(step.kind, step.at) for step in steps] == [
        ("fault", 3.0),
        ("fault", 4.0),
        ("end", 5.0),
        ("end", 8.0),
        ("violation", 60.0),
    ]
    assert steps[2].text == "each of n1 and n2 resumes."


def test_the_diagram_has_a_column_for_the_clients_and_for_each_node() -> None:
    story = build_story(
        outcome(
            request(1.0, "n2"),
            request(4.0, "n1", source="standby"),
            request(5.0, "n1", allowed=False, source="standby"),
            request(6.0, "n1", source="standby"),
            faults=(CRASH,),
        )
    )

    assert draw_text(story) == [
        "               clients     n1       n2",
        "  1    1.01 s     ├────────────────▶●      allowed",
        "  2    3.00 s     │        │        ✗      n2 crashes",
        "  3    3.20 s     │        ◆        │      n1 decides for the unreachable owner, without "
        "a replica",
        "  4    4.01 s     ├───────▶●        │      allowed",
        "  5    5.01 s     ├───────▶○        │      denied",
        "  6    6.01 s     ├───────▶●        │      allowed",
        "  7    6.01 s ═══════════════════════════  over_admission",
    ]
