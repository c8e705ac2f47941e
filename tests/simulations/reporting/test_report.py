"""The page of the HTML report: its texts, its sections and its escapes."""

import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simulations.judging.judged import Judged
from simulations.reporting.outcome import (
    KeyHistory,
    Nearby,
    Outcome,
    Request,
    Series,
    Span,
    Violation,
)
from simulations.reporting.report import render, write_report
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.scenario import Fault, Scenario
from tests.simulations.reporting.outcomes import PLOTS, empty, figures, run, shapes, words

ROOT = Path(__file__).parents[3]
HOSTILE = "</title><script>alert('1')</script>&amp;\"\x00\x1b\ud800]]>"

values = st.floats()
points = st.lists(st.tuples(values, values), max_size=5)
lines = st.dictionaries(st.text(max_size=4), points, max_size=9)
faults = st.builds(
    Fault,
    at=values,
    verb=st.sampled_from(["crash", "partition"]),
    until=st.none() | values,
    args=st.dictionaries(st.text(max_size=4), st.text(max_size=4) | values, max_size=2),
)
outcomes = st.builds(
    Outcome,
    scenario=st.builds(Scenario, name=st.text(), about=st.text(), seconds=values, calm=values),
    seed=st.integers(),
    command=st.text(),
    event_hash=st.text(max_size=4),
    virtual_s=values,
    real_s=values,
    violations=st.lists(st.builds(Violation, st.text(), values, st.text()), max_size=3),
    figures=st.dictionaries(st.text(max_size=4), values, max_size=3),
    marks=st.dictionaries(st.text(max_size=4), st.integers(0), max_size=3).map(Counter),
    series=st.builds(
        Series,
        admitted=lines,
        period_s=values,
        limit=values,
        is_shared=st.booleans(),
        over=points,
        over_bound=points,
        staleness_ms=lines,
        members=st.lists(
            st.builds(Span, values, values, st.text(max_size=2), st.sampled_from(["alive", "odd"])),
            max_size=5,
        ),
        sources=lines,
        latency_ms=lines,
    ),
    faults=st.lists(faults, max_size=5).map(tuple),
)


@settings(max_examples=50)
@given(outcomes)
def test_any_outcome_makes_a_well_formed_page_and_always_the_same(outcome):
    page = ET.fromstring(render(outcome))
    places = [part.get(name, "") for part in page.iter() for name in ("d", "x", "y", "width")]

    assert [figure.findtext("figcaption/h3") for figure in page.iter("figure")] == list(PLOTS)
    assert not [place for place in places if "nan" in place or "inf" in place]
    assert render(outcome).encode() == render(outcome).encode()


def test_the_file_holds_the_page(tmp_path):
    write_report(run(), tmp_path / "report.html")

    assert (tmp_path / "report.html").read_bytes() == render(run()).encode()


def test_the_page_is_self_contained():
    page = render(run())

    assert not [word for word in ("http:", "https:", "<script", "src=", "url(") if word in page]


def test_the_page_shows_the_command_that_repeats_the_run():
    codes = [code.text for code in ET.fromstring(render(run())).iter("code")]

    assert codes == ["4711", "python -m simulations run split --seed 4711", "9f2cab"]


def test_the_page_shows_the_scenario_and_the_outcome():
    page = words(ET.fromstring(render(run())))

    for text in (
        "split Two halves part and meet again. ✓ All invariants held",
        "30 s virtual, 1.5 s real (20 times as fast)",
        "3 nodes in 2 data centers, level node",
        "checks41,230over admitted12.5",
        "split healed1refutation won14",
        "5-12 s: partition side=eu15 s: crash",
        "Units of tenant=acme, the most frequent key of the first rule",
        "Units over the limit of tenant=acme,",
    ):
        assert text in page


def test_the_page_explains_what_to_read_first_and_links_the_documentation():
    page = words(ET.fromstring(render(run())))

    assert "Look at the verdict first" in page
    assert "docs/operate/simulation.md explains the invariants" in page
    shipped = replace(run(), scenario=SCENARIOS["split-brain"])
    page = words(ET.fromstring(render(shipped)))
    assert (
        "split-brain.md describes the scenario, without the changes of this run. docs/oper" in page
    )
    shipped.command = f"ringfence simulate split-brain --seed {shipped.seed}"
    assert "split-brain.md describes the scenario. docs/oper" in words(
        ET.fromstring(render(shipped))
    )
    assert (ROOT / "docs" / "operate" / "scenarios" / "split-brain.md").exists()


def test_excess_is_explained_only_if_all_invariants_hold():
    excess = {"over_admitted_worst_key": 4, "counted_twice": 8, "lost": 0, "by_policy": 223}
    late = {"staleness_worst_ms": 41.0}
    shared = [history(over=4, is_global=True)]
    good = words(ET.fromstring(render(run(figures=excess | late, histories=shared))))
    bad = run(figures=excess, violations=[Violation("lost", 1.0, "x")])

    assert (
        "All invariants heldThis run has 4 units over the limit of exact=k0 (15 in 60 s, "
        "fixed_window), 8 hits counted twice, 223 checks that no node decided. The invariants "
        "allow that much" in good
    )
    assert "fixed_window); the invariant over_admission judges" in good
    assert "other data centers received counts up to 41 ms late" in good
    assert "two nodes may decide for one key during 15 s: crash" in good
    assert 'id="explained"' not in render(bad)
    assert "allow that much" not in render(run(figures=dict.fromkeys(excess, 0)))


def history(**changes):
    return KeyHistory(
        "exact",
        "k0",
        "15 in 60 s, fixed_window",
        60.0,
        requests=[
            Request(1.0, 1.5, "client-0", 1, allowed=True, source="owner", decided_by=("n2",))
        ],
        states=[
            Span(-5, 6, "n2", "OWNED"),
            Span(7, 30, "n10", "COVERED"),
            Span(8, 9, "n2", "SENT"),
        ],
        **changes,
    )


def test_the_worst_key_is_named_with_its_bound():
    worst = history(over=4, bound=15, exact_by="fixed_window")
    page = words(
        ET.fromstring(render(run(figures={"over_admitted_worst_key": 4}, histories=[worst])))
    )

    assert (
        "4 units over the limit of exact=k0 (15 in 60 s, fixed_window); the invariant "
        "over_admission allows 15:fixed_window may admit the limit twice" in page
    )


@pytest.mark.parametrize(
    ("worst", "age_ms"), [({"is_global": False}, 41.0), ({"is_global": True}, 0.0)]
)
def test_late_counts_explain_an_excess_only_if_data_centers_sent_them(worst, age_ms):
    figures = {"over_admitted_worst_key": 4, "staleness_worst_ms": age_ms}
    page = render(run(figures=figures, histories=[history(over=4, **worst)]))

    assert "received counts up to" not in page


def test_the_excess_of_a_bucket_is_explained_by_its_refill():
    worst = history(over=4, exact_by="token_bucket")
    page = render(run(figures={"over_admitted_worst_key": 4}, histories=[worst]))

    assert "token_bucket may admit a burst and the refill of one period" in page


def test_nodes_that_held_the_shard_of_a_key_are_rows_of_a_plot():
    figure = figures(run(histories=[history()]))["Who decided for exact=k0"]

    assert [bar.findtext("title") for bar in shapes(figure, "bar")] == [
        "n2 owns the shard and has its counters, 0 to 6 s",
        "n2 has transferred the shard and waits for the acknowledgement, 8 to 9 s",
        "n10 decides for the unreachable owner, from a replica, 7 to 30 s",
    ]
    legend = [words(entry) for entry in figure.iter("li")]
    assert "COVERED: decides for the unreachable owner, from a replica" in legend


def test_each_violated_invariant_has_a_story_with_a_diagram():
    violations = [
        Violation("convergence", 30.0, "views differ"),
        Violation("over_admission", 1.0, "exact=k0: 16 units in 60 s"),
        Violation("over_admission", 2.0, "exact=k1: 17 units in 60 s"),
    ]
    page = ET.fromstring(render(run(violations=violations, histories=[history(is_judged=True)])))
    stories = [each for each in page.iter("section") if each.get("class") == "violation-story"]

    assert [each.findtext("h2") for each in stories] == [
        "What led to over_admission",
        "What led to convergence",
    ]
    assert "1.50 sn2 (owner) allows a check of client-0 for exact=k0." in words(stories[0])
    assert [each.get("class") for each in stories[0].iter("svg")] == ["sequence"]


def test_the_share_of_exactly_judged_decisions_is_shown_with_the_reasons_of_the_others():
    judged = Judged()
    for _ in range(3):
        judged.add_decision({"wrong_denial": (), "retry_after": ()})
    judged.add_decision({"wrong_denial": ("crash of n2",), "retry_after": ()})
    page = words(ET.fromstring(render(run(judged=judged))))

    assert "75.0 % of 4 decisions were judged exactly." in page
    assert "retry_after40wrong_denial31" in page
    assert "crash of n2: 1" in page
    assert "What was judged" not in render(run())


def test_nearby_runs_say_which_fault_the_violation_needs():
    nearby = [
        Nearby("without 3 s: crash node=n2", (), is_smaller=True),
        Nearby("without 5 s: reset", ("lost_hits",), is_smaller=True),
        Nearby("with seed 8", (), is_smaller=False),
    ]
    page = words(ET.fromstring(render(run(nearby=nearby))))

    assert "The violation disappears without 3 s: crash node=n2." in page
    assert "without 5 s: reset✗ lost_hits" in page
    assert "with seed 8✓ all invariants held" in page
    assert "Nearby runs" not in render(run())


def test_violations_are_shown_at_the_top_and_in_every_plot():
    violations = [Violation("over_admission", 11.0, "131 of 100 <+ 24>")]
    page = render(run(violations=violations))

    assert "All invariants held" not in page
    assert "1 violation<ul><li><b>over_admission</b> at 11 s: 131 of 100 &lt;+ 24&gt;" in page
    for figure in figures(run(violations=violations)).values():
        assert len(shapes(figure, "violation")) == 1


def test_only_the_first_of_many_violations_are_listed():
    page = render(run(violations=[Violation("lost", 1.0, "x")] * 1234))

    assert page.count("<b>lost</b>") == 100
    assert "1,233 more of lost" in page
    assert "1,234 violations" in page
    assert "and 1,134 more" in page


def test_text_from_a_run_is_escaped():
    outcome = run(
        scenario=Scenario(HOSTILE, HOSTILE),
        command=HOSTILE,
        event_hash=HOSTILE,
        violations=[Violation(HOSTILE, 1.0, HOSTILE)],
        figures={HOSTILE: 1},
        marks=Counter({HOSTILE: 1}),
        faults=(Fault(1, HOSTILE, 20, {HOSTILE: HOSTILE}),),
        series=Series(
            key=HOSTILE,
            admitted={HOSTILE: [(1, 1)]},
            members=[Span(0, 9, HOSTILE, HOSTILE)],
            sources={HOSTILE: [(1, 1)]},
        ),
    )

    page = render(outcome)

    assert "<script" not in page
    assert "&amp;amp;&quot;\\x00\\x1b\\ud800" in page
    assert list(ET.fromstring(page).iter("script")) == []


def test_the_report_of_an_empty_run_explains_missing_plots():
    shown = figures(empty())

    assert list(shown) == list(PLOTS)
    assert all("Nothing to show: " in words(figure) for figure in shown.values())
    assert "the scenario has no faults." in words(shown["Faults"])
    assert "a single data center has no others to hear of." in words(shown["Staleness"])
