"""The plots of the HTML report."""

import math
import re

import pytest
from msgspec.structs import replace

from simulations.reporting.outcome import (
    Series,
    Span,
)
from simulations.reporting.plots import Frame, number, plot_bars, stack
from simulations.scenarios.scenario import Fault, Load
from tests.simulations.reporting.outcomes import PLOTS, empty, figures, run, shapes, texts, words


@pytest.mark.parametrize("label", ["members", "one row per member of all"])
def test_a_plot_of_one_row_has_space_for_its_axis_label(label):
    frame = Frame(0.0, 10.0, (), (), 10.0)

    plot = plot_bars(frame, "Members", "", label, [("n1", [])], {})

    edge = re.search(r'class="frame".*? height="(\d+)"', plot)
    assert edge is not None
    assert int(edge[1]) >= 7 * len(label)


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


def test_one_slow_second_does_not_flatten_the_others():
    series = Series(latency_ms={"p99": [(0, 1.0), (1, 1.5), (2, 2.0), (3, 900.0)]})
    figure = figures(run(series=series))["Latency of checks"]

    assert texts(figure, "axis")[1] == "latency (ms), log scale"
    assert {"1", "10", "100", "1,000"} <= set(texts(figure, "tick"))


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


def test_values_that_no_axis_can_show_are_left_out():
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
