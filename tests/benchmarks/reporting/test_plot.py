"""Plots of figures as SVG files."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.reporting.figure import Figure, figure
from benchmarks.reporting.plot import drawn, write_plot
from ringfence.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


def widths(text: str) -> list[float]:
    return [float(bar.attrib["width"]) for bar in ElementTree.fromstring(text).iter(f"{SVG}rect")]


def texts(text: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(text).iter(f"{SVG}text")]


def test_figures_of_one_unit_share_a_scale_even_with_other_units_between_them() -> None:
    figures = [
        figure("peers.ours", "1/s", [100.0]),
        figure("peers.ratio", "x", [2.0]),
        figure("peers.theirs", "1/s", [50.0]),
    ]

    ours, theirs, ratio = widths(drawn(figures, "a machine"))

    assert ours == pytest.approx(2 * theirs, abs=0.2)
    assert ratio == ours


def test_figures_of_different_magnitudes_have_a_logarithmic_scale() -> None:
    figures = [figure("ring.a", "ns", [10.0]), figure("ring.b", "ns", [100_000.0])]

    drawing = drawn(figures, "a machine")

    assert "ring, ns, logarithmic scale" in texts(drawing)
    assert widths(drawing)[0] < 1


def test_special_characters_in_the_name_of_a_machine_are_escaped() -> None:
    drawing = drawn([figure("ring.a", "ns", [1.0])], 'Intel <R> & "Co"\0')

    assert 'Intel <R> & "Co"\\x00' in texts(drawing)


@example([figure("ring.a", "ns", [5e-324, 1.0])])
@given(
    st.lists(
        st.builds(
            lambda unit, values: figure("ring.a", unit, values),
            st.sampled_from(["ns", "x"]),
            st.lists(st.floats(-1e9, 1e12), min_size=1, max_size=5),
        ),
        min_size=1,
    )
)
def test_all_bars_are_within_the_page(figures: list[Figure]) -> None:
    root = ElementTree.fromstring(drawn(figures, ""))

    bars = list(root.iter(f"{SVG}rect"))
    assert len(bars) == len(figures)
    for bar in bars:
        x, width = float(bar.attrib["x"]), float(bar.attrib["width"])
        assert x >= 0
        assert x + width <= float(root.attrib["width"])


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--plot: .* cannot be written"):
        write_plot(tmp_path / "no" / "such.svg", [figure("ring.a", "ns", [1.0])], "")
