"""The threat model states the bounds on reports of decisions as they are in the code."""

from pathlib import Path

from node.requests.client_reports import MAX_CLIENTS, Pace
from ringfence.wire import MAX_REPORT_DECISIONS, MAX_REPORT_KEYS, MAX_REPORT_NAMED

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "threat-model.md").read_text("utf-8")


def stated_bound(bound: str) -> str:
    [found] = [line for line in PAGE.splitlines() if line.startswith(f"| {bound} |")]
    return found.split("|")[2].strip()


def test_the_bounds_on_reports_in_the_threat_model_match_the_code() -> None:
    pace = Pace(0.0)
    at_once = sum(pace.take(0.0) for _ in range(100))
    each_second = sum(pace.take(1.0) for _ in range(100))

    assert stated_bound("reports of decisions, per connection") == (
        f"{at_once} at once, {each_second} per second"
    )
    assert stated_bound("clients whose last report is stored") == str(MAX_CLIENTS)
    assert stated_bound("size of a report of decisions").startswith(
        f"{MAX_REPORT_KEYS} rows, {MAX_REPORT_NAMED} of them with a key; 2^24 decisions."
    )
    assert MAX_REPORT_DECISIONS == 2**24
