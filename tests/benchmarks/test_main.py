"""Command that runs benchmarks by name."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES, main, module_of
from benchmarks.core import ring
from benchmarks.reporting.figure import Figure, figure


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the benchmark of the ring by one that ends immediately."""

    def run(rounds: int) -> Iterator[Figure]:
        yield figure("ring.lookup_ns", "ns", [float(each) for each in range(1, rounds + 1)])

    monkeypatch.setattr(ring, "run", run)


def test_without_a_name_all_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    assert capsys.readouterr().out.split() == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_a_module(name: str) -> None:
    assert find_spec(module_of(name)) is not None


@pytest.mark.usefixtures("quick")
def test_all_lines_of_json_have_the_same_fields_and_the_machine_is_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["ring", "--json", "--rounds", "3"]) == 0

    machine, ring_figure = map(json.loads, capsys.readouterr().out.splitlines())
    assert machine["name"] == "machine"
    assert "Python" in machine["about"]
    assert machine.keys() - {"about"} == ring_figure.keys()
    assert (ring_figure["name"], ring_figure["value"], ring_figure["min"], ring_figure["max"]) == (
        "ring.lookup_ns",
        2,
        1,
        3,
    )


@pytest.mark.usefixtures("quick")
def test_a_table_for_the_docs_has_a_row_for_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--markdown", "--rounds", "3"]) == 0

    assert capsys.readouterr().out.endswith("\n| `ring.lookup_ns` | 2 | 1 | 3 | ns |\n")


@pytest.mark.usefixtures("quick")
def test_figures_are_printed_and_also_drawn_with_the_plot_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ring.svg"

    assert main(["ring", "--rounds", "1", "--plot", str(path)]) == 0

    assert "ring.lookup_ns" in capsys.readouterr().out
    assert path.read_text("utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("name", "end"), [("limitre", "got 'limitre'; did you mean 'limiter'?"), ("xyz", "got 'xyz'")]
)
def test_a_misspelt_name_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str], name: str, end: str
) -> None:
    with pytest.raises(SystemExit):
        main([name])

    assert capsys.readouterr().err.endswith(f"{end}\n")


def test_the_error_of_peers_without_redis_states_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert main(["peers"]) == 2

    error = capsys.readouterr().err
    assert "needs redis-server, which is not on the PATH" in error
    assert "apt-get install" in error
