"""Recipe of docs/guides/block-ip-or-key.md, on node processes."""

import re
from pathlib import Path

from ringfence import blocking
from ringfence.rules import Descriptor
from ringfence.rules.loading.yaml_files import load_path
from tests.node.end_to_end.test_serve import ROOT, asked, started, until

SECTION = (ROOT / "docs" / "guides" / "block-ip-or-key.md").read_text("utf-8")
FILES = {
    name: f"# rules/{name}\n{text}"
    for name, text in re.findall(r"```yaml rules\n# rules/(\S+)\n(.*?)```", SECTION, re.DOTALL)
}
BLOCK, RAISE = "block-203.0.113.7.yaml", "raise-acme.yaml"


def test_adding_a_rule_file_blocks_and_removing_it_unblocks(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "api.yaml").write_text(FILES["api.yaml"], "utf-8")
    config = tmp_path / "node.toml"
    config.write_text('rules = "rules"\nmerge_domains = true\nreload_interval = 0.1\n', "utf-8")
    flags = {name: ["--config", str(config), "--name", name] for name in ("a", "b")}
    with (
        started(tmp_path, flags) as running,
        blocking.connect(running["a"].url) as limiter,
    ):
        client, other = {"client": "203.0.113.7"}, {"client": "203.0.113.8"}
        acme, path = {"customer": "acme"}, {"path": "/a"}
        limiter.check("api", client, cost=100)
        limiter.check("api", acme, cost=999)

        for name in (BLOCK, RAISE):
            (rules / name).write_text(FILES[name], "utf-8")
        until(lambda: limiter.peek("api", acme).limit == 5000)
        until(lambda: not limiter.check("api", client).allowed)
        assert not limiter.check("api", [path, client]).allowed
        assert limiter.check("api", other).allowed
        assert limiter.check("api", acme, cost=4000).allowed
        status, out, _ = asked("why", "api", "client=203.0.113.7", "--cluster", running["b"].url)
        documented = SECTION[SECTION.index("client=203.0.113.7: denied") :].splitlines()[:3]
        assert (status, out.splitlines()[:3]) == (1, documented)
        assert asked("rules", "check", "--merge", str(rules))[0] == 0

        for name in (BLOCK, RAISE):
            (rules / name).unlink()
        until(lambda: limiter.check("api", client).allowed)
        until(lambda: limiter.peek("api", acme).limit == 1000)
        # The counter was kept: a new one would have 299 units left. If a minute has ended, less
        # than half of the 100 units can have left the window.
        assert (limiter.peek("api", client).remaining or 0) < 250
        assert limiter.peek("api", acme).remaining == 1


def test_the_documented_exceptions_of_a_block_hold(tmp_path: Path) -> None:
    deeper = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 300}
    descriptors:
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 10}
  - key: path
    value: /login
    descriptors:
      - key: client
        rate_limit: {unit: minute, requests_per_unit: 5}
"""
    (tmp_path / "api.yaml").write_text(deeper, "utf-8")
    (tmp_path / BLOCK).write_text(FILES[BLOCK], "utf-8")
    rules = load_path(tmp_path, merge=True).rules

    def limit_of(**entries: str) -> int | None:
        [match] = rules.match("api", [Descriptor(tuple(entries.items()))])
        return match.rule.limit.amount if match is not None and match.rule.limit else None

    assert limit_of(client="203.0.113.7") == 0
    assert limit_of(path="/login", client="203.0.113.7") == 5
    assert limit_of(client="203.0.113.8", path="/a") == 10
    assert limit_of(client="203.0.113.7", path="/a") is None
