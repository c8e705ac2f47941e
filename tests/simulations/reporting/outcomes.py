"""Outcomes of runs for tests of the HTML report, and searches in its page."""

import xml.etree.ElementTree as ET
from collections import Counter

from msgspec.structs import replace

from simulations.reporting.outcome import (
    Outcome,
    Series,
    Span,
)
from simulations.reporting.report import render
from simulations.scenarios.scenario import Fault, Scenario

PLOTS = {
    "Faults": "faults",
    "Admitted against the limit": "units in 60 s",
    "Over-admission": "over the limit (units)",
    "Staleness": "age (ms)",
    "Members": "members",
    "Decisions by source": "decisions per second (1/s)",
    "Latency of checks": "latency (ms)",
}


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
