"""Command `ringfence what-if`: decisions about a log, as text and as a page."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.invocation import Run

RULES = """
domain: log
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: ALGORITHM}
"""
BY_METHOD = """
domain: log
descriptors:
  - key: method
    value: GET
    descriptors:
      - key: client
        rate_limit: {unit: minute, requests_per_unit: 3}
"""


def written(folder: Path, algorithm: str) -> tuple[Path, Path]:
    rules, log = folder / "rules.yaml", folder / "access.log"
    rules.write_text(RULES.replace("ALGORITHM", algorithm), "utf-8")
    log.write_text(
        "".join(
            f"192.0.2.{second % 3} - - [01/Sep/2025:00:{second // 60:02}:{second % 60:02} +0000] "
            f'"GET / HTTP/1.1" 200 5 "-" "-"\n'
            for second in range(200)
            if second % 7
        ),
        "utf-8",
    )
    return rules, log


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log", "token_bucket"])
def test_with_exact_counting_what_if_decides_like_a_replay(
    run: Run, tmp_path: Path, algorithm: str
) -> None:
    rules, log = written(tmp_path, algorithm)
    replay = ("--rules", rules, "--local", "--clock", "log", "--json")

    asked = run("what-if", "--rules", rules, "--log", log, "--exact", "--json").rows[-1]
    replayed = run(log, *replay, verb="replay").rows[-1]

    assert replayed["denied"] > 10
    assert asked["denied"] == asked["denied_exact"] == replayed["denied"]
    assert {(row["client"], row["checks"], row["denied"]) for row in asked["throttled"]} == {
        (row["client"], row["checked"], row["denied"]) for row in replayed["most_throttled"]
    }


def test_a_descriptor_key_that_no_rule_has_is_reported_with_a_suggestion(
    run: Run, tmp_path: Path
) -> None:
    rules, log = written(tmp_path, "sliding_window")

    asked = run("what-if", "--rules", rules, "--log", log, "--json", "-d", "clinet=client")

    assert asked.status == 0
    assert "no rule for descriptor key 'clinet'" in asked.err
    assert "did you mean 'client'?" in asked.err


def test_what_if_prints_throttled_clients_and_their_rules(run: Run, tmp_path: Path) -> None:
    rules, log = written(tmp_path, "sliding_window")

    ran = run("what-if", "--rules", rules, "--log", log)

    assert ran.status == 0
    assert "decided by one data center" in ran.out
    assert "wrongly denied" not in ran.out.split("errors of these decisions")[0]
    assert "192.0.2.1" in ran.out
    assert "log > client" in ran.out


def test_what_if_breaks_no_word_at_120_columns(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    rules, log = written(tmp_path, "sliding_window")
    rules.write_text(BY_METHOD.replace("domain: log", "domain: api"), "utf-8")
    asked = ("what-if", "--rules", rules, "--log", log, "--descriptor", "method,client")

    ran = run(*asked, "--domain", "api", "--datacenters", "3")

    assert ran.status == 0
    assert "decided by 3 data centers" in ran.out
    words = set(ran.out.split())
    assert {"sliding_window", "method=GET", "client", "counting", "wrongly", "allowed"} <= words
    assert {"furthest", "bound", "difference", "counters", "192.0.2.1"} <= words


def test_what_if_also_writes_an_html_page(run: Run, tmp_path: Path) -> None:
    rules, log = written(tmp_path, "sliding_window")
    hostile = log.with_name("a<b>&.log")
    log.rename(hostile)
    page = tmp_path / "report.html"

    ran = run("what-if", "--rules", rules, "--log", hostile, "--report", page)

    assert ran.status == 0
    assert f"report: {page}" in ran.out
    text = "".join(ET.fromstring(page.read_text("utf-8")).itertext())
    for said in ("What if: a<b>&.log", "log > client", "192.0.2.1", "decided by one data center"):
        assert said in text
    assert not [word for word in ("http:", "https:", "<script", "src=") if word in text]
