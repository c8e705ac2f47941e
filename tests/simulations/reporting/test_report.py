import math
import re
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
from simulations.reporting.plots import Frame, number, plot_bars, stack
from simulations.reporting.report import render, write_report
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.scenario import Fault, Load, Scenario

ROOT = Path(__file__).parents[3]
PLOTS = {
    "Faults": "faults",
    "Admitted against the limit": "units in 60 s",
    "Over-admission": "over the limit (units)",
    "Staleness": "age (ms)",
    "Members": "members",
    "Decisions by source": "decisions per second (1/s)",
    "Latency of checks": "latency (ms)",
}
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


def run(**changes):
    """Return an outcome with data for every plot."""
    seconds = range(30)
    series = Series(
        key="tenant=acme",
        admitted={"eu": [(t, 60 + t) for t in seconds], "us": [(t, 50) for t in seconds]},
        period_s=60.0,
        limit=100.0,
        over=[(t, t % 7) for t in seconds],
        over_bound=[(t, 10) for t in seconds],
        staleness_ms={"eu": [(t, 40 + t) for t in seconds]},
        members=[
            Span(0, 9, "n1", "alive"),
            Span(9, 12, "n1", "suspect"),
            Span(0, 30, "n2", "dead"),
        ],
        sources={"owner": [(t, 500) for t in seconds], "lease": [(t, 90) for t in seconds]},
        latency_ms={"p50": [(t, 1.0) for t in seconds], "p99": [(t, 4.0) for t in seconds]},
    )
    outcome = Outcome(
        Scenario("split", "Two halves part and meet again.", seconds=20, calm=10, datacenters=2),
        seed=4711,
        command="python -m simulations run split --seed 4711",
        event_hash="9f2cab",
        virtual_s=30.0,
        real_s=1.5,
        figures={"checks": 41230, "over_admitted": 12.5},
        marks=Counter(refutation_won=14, split_healed=1),
        series=series,
        faults=(Fault(5, "partition", 12, {"side": "eu"}), Fault(15, "crash")),
    )
    return replace(outcome, **changes)


def empty(**changes):
    return Outcome(Scenario("idle", "Nothing happens.", **changes), seed=1, command="replay")


def figures(outcome):
    """Parse the page; return its figures by title."""
    page = ET.fromstring(render(outcome))
    return {figure.findtext("figcaption/h3"): figure for figure in page.iter("figure")}


def texts(element, kind):
    return [text.text for text in element.iter("text") if text.get("class") == kind]


def shapes(element, kind):
    drawing = element.find("svg")
    return [shape for shape in drawing.iter() if kind in shape.get("class", "").split()]


def words(element):
    return " ".join("".join(element.itertext()).split())


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
        "n2 owns the shard and has its counters, -5 to 6 s",
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


@pytest.mark.parametrize("label", ["members", "one row per member of all"])
def test_a_plot_of_one_row_has_space_for_its_axis_label(label):
    frame = Frame(0.0, 10.0, (), (), 10.0)

    plot = plot_bars(frame, "Members", "", label, [("n1", [])], {})

    edge = re.search(r'class="frame".*? height="(\d+)"', plot)
    assert edge is not None
    assert int(edge[1]) >= 7 * len(label)


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


@pytest.mark.parametrize(("title", "unit"), PLOTS.items())
def test_every_plot_labels_its_axes_and_explains_its_colors(title, unit):
    figure = figures(run())[title]

    assert texts(figure, "axis") == ["time since the load began (s)", unit]
    assert {"end of the load", "fault, with its number"} <= set(map(words, figure.iter("li")))
    assert shapes(figure, "grid")


def test_all_plots_have_one_time_axis_with_the_same_faults_behind():
    plots = figures(run()).values()

    def places(kind, *names):
        return {
            tuple(tuple(shape.get(name) for name in names) for shape in shapes(plot, kind))
            for plot in plots
        }

    assert len(places("frame", "x", "width")) == 1
    assert places("shade", "x", "width") == {(("312.3", "199.3"),)}
    assert {tuple(texts(plot, "fault")) for plot in plots} == {("1", "2")}
    assert {len(shapes(plot, "instant")) for plot in plots} == {1}


def test_overlapping_faults_are_distinguishable():
    faults = (Fault(1, "loss", 9), Fault(2, "loss", 5), Fault(6, "loss", 8), Fault(3, "crash"))
    figure = figures(run(faults=faults))["Faults"]
    bars = shapes(figure, "bar")

    assert [bar.findtext("title") for bar in bars] == [
        "4. 3 s: crash",
        "1. 1-9 s: loss",
        "2. 2-5 s: loss",
        "3. 6-8 s: loss",
    ]
    assert bars[1].get("y") != bars[2].get("y") == bars[3].get("y")


def test_admitted_units_of_data_centers_are_also_added_up():
    legend = [words(entry) for entry in figures(run())["Admitted against the limit"].iter("li")]

    assert legend[:4] == ["limit", "admitted in eu", "admitted in us", "all data centers together"]


def test_bounds_of_data_centers_are_not_added_up():
    series = replace(run().series, is_shared=False)
    figure = figures(run(series=series))["Admitted against the limit"]

    assert [words(entry) for entry in figure.iter("li")][:3] == [
        "limit",
        "admitted in eu",
        "admitted in us",
    ]


def test_lines_stack_and_count_as_nothing_where_they_have_no_point():
    stacked = stack({"a": [(0, 1), (2, 3)], "b": [(1, 5), (2, 7), (3, math.nan)]})

    assert stacked == {"a": [(0, 1), (1, 0), (2, 3)], "b": [(0, 1), (1, 5), (2, 10)]}


def test_a_lone_slow_second_does_not_flatten_the_others():
    series = Series(latency_ms={"p99": [(0, 1.0), (1, 1.5), (2, 2.0), (3, 900.0)]})
    figure = figures(run(series=series))["Latency of checks"]

    assert texts(figure, "axis")[1] == "latency (ms), log scale"
    assert {"1", "10", "100", "1,000"} <= set(texts(figure, "tick"))


def test_text_from_a_run_stays_text():
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


@pytest.mark.parametrize(
    ("changes", "title", "why"),
    [
        ({"loads": ()}, "Decisions by source", "the scenario has no load"),
        ({"loads": (Load(per_second=0),)}, "Admitted against the limit", "has no load"),
        ({"loads": ()}, "Latency of checks", "the scenario has no load"),
        ({"datacenters": 2}, "Staleness", "no age was measured"),
        ({"faults": (Fault(1, "crash"),)}, "Faults", "no fault was applied"),
    ],
)
def test_an_empty_plot_states_the_correct_reason(changes, title, why):
    assert why in words(figures(empty(**changes))[title])


def test_values_that_no_axis_can_hold_count_as_none():
    series = Series(latency_ms={"p50": [(1, math.nan), (2, math.inf), (math.nan, 1)]})

    assert "Nothing to show" in words(figures(run(series=series))["Latency of checks"])


def test_among_a_thousand_members_the_failed_ones_are_shown():
    members = [Span(0, 30, f"n{n}", "alive") for n in range(1000)]
    members[7:8] = [Span(0, 8, "n7", "alive"), Span(8, 30, "n7", "dead")]
    members.append(Span(29, 30, "n100", "suspect"))
    figure = figures(run(series=Series(members=members)))["Members"]

    assert [name for name in texts(figure, "tick") if name.startswith("n")] == ["n7", "n100"]
    assert "Left out are 998 of 1,000 members: 998 that were always alive." in words(figure)


def test_among_a_thousand_members_the_longest_failures_are_shown():
    members = [Span(n / 100, 30, f"n{n}", "suspect") for n in range(1000)]
    figure = figures(run(series=Series(members=members)))["Members"]

    names = [name for name in texts(figure, "tick") if name.startswith("n")]
    assert names == [f"n{n}" for n in range(40)]
    assert "960 of 1,000 members: 0 that were always alive and 960 that were not" in words(figure)


def test_a_thousand_members_without_trouble_need_no_rows():
    members = [Span(0, 30, f"n{n}", "alive") for n in range(1000)]
    figure = figures(run(series=Series(members=members)))["Members"]

    assert "all 1,000 members were alive throughout." in words(figure)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (41230, "41,230"), (0.73021, "0.7302"), (1234.567, "1,234.57"), (math.inf, "inf")],
)
def test_numbers_are_formatted_for_readers(value, text):
    assert number(value) == text
