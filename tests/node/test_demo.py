"""The demonstration, whole: three processes, a real log, a kill, and an independent verdict."""

import json

import pytest

from node.cli import command

LINES = 10_000


def test_the_demo_loses_a_node_and_neither_an_answer_nor_a_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ringfence", "demo", "--json", "--speed", "200000"])

    with pytest.raises(SystemExit) as left:
        command.main()

    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not left.value.code
    assert told["lines"] == told["checks"] == LINES
    assert told["allowed"] + told["denied"] == LINES
    assert told["denied"] > 0
    assert told["errors"] == 0
    assert told["over_admitted"] == 0
    assert told["judged_keys"] > 0
    assert told["decisions_by_source"]["standby"] > 0
    alive = {node["name"]: node["alive"] for node in told["nodes"]}
    assert alive == {name: name != told["killed_node"] for name in "abc"}
