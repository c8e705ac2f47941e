"""The dashboard in a real browser, on a node that does not own the most denied key."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from time import monotonic

import pytest

from ringfence import blocking
from tests.node.end_to_end.test_serve import rules_of, started, until
from tests.programs import require
from tests.ringfence.gateway.processes import fetch


@pytest.mark.timeout(300)
def test_the_dashboard_of_any_node_shows_the_most_denied_key(tmp_path: Path) -> None:
    chromium = require("chromium")
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "api.yaml").write_text(rules_of(5), "utf-8")
    config = tmp_path / "node.toml"
    config.write_text('rules = "rules"\nreload_interval = 0.1\n', "utf-8")
    flags = {
        name: ["--config", str(config), "--name", name, "--http", "127.0.0.1:0"] for name in "ab"
    }
    denied: Counter[str] = Counter()
    with started(tmp_path, flags) as running:
        pages = [
            re.findall(r"operators look at (http://127\.0\.0\.1:\d+)", node.log)[0]
            for node in running.values()
        ]
        with blocking.connect(running["a"].url) as limiter:
            for client, times in (("greedy", 50), ("modest", 9)):
                for _ in range(times):
                    denied[client] += not limiter.check("api", {"client": client})
        until(lambda: sum(throttled(pages[0]).values()) >= denied.total())
        keys = throttled(pages[0])
        assert [*keys] == ["client=greedy", "client=modest"]
        (rules / "api.yaml").write_text("domain: api\nrules: 3\n", "utf-8")
        until(lambda: all("not reloaded" in node.log for node in running.values()))
        expected = [[(key, str(count)) for key, count in keys.items()], ["a, b"], ["2 / 2"]]
        for index, page in enumerate(pages):
            contents: list[object] = []
            deadline = monotonic() + 60
            # On a busy machine, the other node may not answer in time, or count as suspect.
            while contents != expected and monotonic() < deadline:
                contents = contents_of(dom_of(chromium, page, tmp_path / str(index)))
            assert contents == expected


def throttled(page: str) -> dict[str, int]:
    """Return the throttled keys and their denials from the API, the most denied key first."""
    answer = json.loads(fetch(f"{page}/v1/throttled?count=256").body)
    return {"=".join(each["counter"][0]): each["denied"] for each in answer["keys"]}


def contents_of(dom: str) -> list[object]:
    """Return throttled keys with denials, the nodes that rejected rules, and the live members."""
    [keys] = re.findall(r'<tbody id="throttled">(.*?)</tbody>', dom)
    rows = [re.sub(r"<.*?>", " ", row).split() for row in keys.split("</tr>")]
    refused = re.findall(r"Rules on disk refused by (.*?);", dom.partition("<script>")[0])
    alive = re.findall(r'id="alive">(.*?)<', dom)
    return [[(row[0], row[-1]) for row in rows if row], refused, alive]


def dom_of(chromium: str, page: str, profile: Path) -> str:
    """Return the DOM of the page a few seconds after the browser opened it."""
    return subprocess.run(
        [
            chromium,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"),
            *(f"--user-data-dir={profile}", "--dump-dom", f"{page}/"),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    ).stdout
