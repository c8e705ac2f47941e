"""Built-in scenarios and their pages."""

from pathlib import Path

import pytest

from simulations.scenarios.catalog import SCENARIOS, scenario

PAGES = Path(__file__).parents[3] / "docs" / "operate" / "scenarios"


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_a_page_with_its_command(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text("utf-8")

    assert f"ringfence simulate {name} --seed 7" in page


def test_every_page_is_about_a_scenario() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(SCENARIOS)


def test_an_unknown_scenario_is_rejected_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"must be one of steady, hot-key, .*got 'stedy'"):
        scenario("stedy")
