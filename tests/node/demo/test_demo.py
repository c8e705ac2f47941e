"""Demo: three processes, a real log, a killed node, and the verdict of the oracle."""

import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
from msgspec.structs import replace
from rich.console import Console

from node.cli import command
from node.cli import demo as demo_command
from node.cli.demo import picture, progress_line
from node.demo import show
from node.demo.shares import CLIENT, Share
from node.demo.show import Demo, DemoResult
from node.replay.logs import read_log
from node.replay.tally import Tally
from ringfence.errors import PeerUnavailable
from ringfence.limiter import NS_PER_SECOND, Limit
from tests.invocation import invoke

LINES = 3000
"""The log has ten thousand lines. The check of the installed command replays all of them."""
ROOT = Path(__file__).parents[3]


def test_when_a_demo_node_is_killed_no_check_fails_and_no_limit_is_exceeded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shortened_log = tmp_path / "access.log"
    with gzip.open(ROOT / "node" / "demo" / "semicomplete-2015-05.log.gz") as whole_log:
        shortened_log.write_bytes(b"".join(islice(whole_log, LINES)))
    monkeypatch.setattr(show, "read_log", lambda path: read_log(shortened_log))
    monkeypatch.setattr("sys.argv", ["ringfence", "demo", "--json", "--speed", "200000"])

    with pytest.raises(SystemExit) as exited:
        command.main()

    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not exited.value.code, summary
    assert summary["lines"] == summary["checks"] == LINES
    assert summary["allowed"] + summary["denied"] == LINES
    assert summary["denied"] > 0
    assert summary["undecided"] == 0
    assert summary["over_admitted"] == 0
    assert summary["judged_keys"] > 0
    assert summary["decisions_by_source"]["standby"] > 0
    shares = summary["decisions_by_node"]
    assert set("abc") <= shares.keys()
    for column in ("checks", "allowed", "denied"):
        assert sum(share[column] for share in shares.values()) == summary[column]
    assert sum(share["as_standby"] for share in shares.values()) > 0
    alive = {node["name"]: node["alive"] for node in summary["nodes"]}
    assert alive == {name: name != summary["killed_node"] for name in "abc"}
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    _, _, fields = page.partition("`ringfence demo` prints one line")
    assert summary.keys() <= {*re.findall(r"`(\w+)`", fields)}


def test_the_first_frame_is_shown_before_any_node_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_to_start(rules: Path) -> NoReturn:
        raise PeerUnavailable("nothing was started")

    monkeypatch.setattr(show, "started_cluster", fail_to_start)
    monkeypatch.setattr("sys.argv", ["ringfence", "demo"])

    with pytest.raises(SystemExit) as exited:
        command.main()

    assert exited.value.code == 3
    captured = capsys.readouterr()
    assert captured.err == "ringfence: nothing was started\n"
    first, rule, *_, last = captured.out.splitlines()
    assert first == "Three nodes on this host limit the log of a real web server."
    assert rule == "Rule: each client may make 20 requests in any 10 s."
    assert last == "starting nodes: 0 of 3 are up"


def test_latencies_in_json_are_milliseconds_rounded_to_microseconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_demo(seen: Demo, on_change: object) -> DemoResult:
        return DemoResult(10, 0, Tally(), 0, 1, {}, {}, "a", [], 0.0012346, 0.0123456)

    monkeypatch.setattr(demo_command, "run_demo", run_demo)

    assert invoke(monkeypatch, capsys, "demo", "--json").row["latency_ms"] == {
        "p50": 1.235,
        "p99": 12.346,
    }


def demo_halfway(**changes: Any) -> Demo:
    demo = Demo(
        12_000,
        limit=Limit(20, 10),
        span_ns=83 * 3600 * NS_PER_SECOND,
        total=10_000,
        started_at=0.0,
        took=5.0,
        killed="a",
        up={"a", "b", "c"},
        shards={"a": 5500, "b": 8000, "c": 8384},
        shares={
            "a": Share(1750, 1500, 250),
            "b": Share(3250, 3000, 250, 120),
            "c": Share(2500, 2000, 500),
            CLIENT: Share(500, 0, 500),
        },
        latencies=[0.001] * 8000,
    )
    return replace(demo, **changes)


def printed_lines(demo: Demo, width: int) -> list[str]:
    output = StringIO()
    Console(file=output, width=width).print(picture(demo))
    return output.getvalue().splitlines()


@pytest.mark.parametrize("width", [66, 80])
def test_the_picture_keeps_the_decisions_of_the_killed_node_and_its_columns_add_up(
    width: int,
) -> None:
    lines = printed_lines(demo_halfway(), width)

    assert "  8000 of 10000 requests" in lines[6]
    assert lines[7] == "node a was killed (SIGKILL); checks go on"
    assert lines[8].startswith("latency p50 1.00 ms, p99 1.00 ms at 1600 checks/s;")
    head, *rows = [line.split() for line in lines[10:]]
    assert head == ["decided", "by", "shards", "checks", "allowed", "denied", "as", "standby"]
    assert rows == [
        ["node", "a", "killed", "1750", "1500", "250", "0"],
        ["node", "b", "8000", "3250", "3000", "250", "120"],
        ["node", "c", "8384", "2500", "2000", "500", "0"],
        ["client", "(cached)", "500", "0", "500", "0"],
        ["all", "8000", "6500", "1500", "120"],
    ]


def test_the_final_picture_does_not_say_that_checks_go_on() -> None:
    lines = printed_lines(demo_halfway(is_over=True), 80)

    assert "node a was killed (SIGKILL) half way" in lines
    assert "go on" not in "".join(lines)


def test_no_latency_is_shown_before_the_first_check() -> None:
    text = "\n".join(printed_lines(Demo(12_000, total=10_000, up={"b"}), 80))

    assert "starting nodes: 1 of 3 are up" in text
    assert "latency" not in text


def test_the_progress_line_summarizes_the_picture() -> None:
    assert progress_line(Demo(12_000, up={"b"})) == "starting nodes: 1 of 3 are up"
    assert progress_line(demo_halfway()) == (
        "5 s: 8000 of 10000 requests, 6500 allowed, 1500 denied; node a was killed"
    )


def test_an_interrupt_during_a_start_takes_effect_at_the_next_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    async def start(seen: Demo, on_change: object) -> None:
        signal.raise_signal(signal.SIGINT)
        started.append(True)
        await trio.sleep_forever()

    monkeypatch.setattr(demo_command, "run_demo", start)

    assert trio.run(demo_command._run_until_signal, Demo(1), lambda: None) == signal.SIGINT
    assert started


def restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("signal_number", "awaited"),
    [
        (signal.SIGTERM, b"starting nodes"),
        (signal.SIGINT, b"starting nodes"),
        (signal.SIGINT, b"all nodes are up"),
    ],
)
def test_a_demo_that_is_interrupted_leaves_no_keys_and_no_node(
    tmp_path: Path, signal_number: signal.Signals, awaited: bytes
) -> None:
    screen, terminal = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-m", "node.entry", "demo", "--speed", "100"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
        # If a shell runs the tests in the background, their child processes ignore SIGINT.
        preexec_fn=restore_sigint,  # noqa: PLW1509 - it only sets a signal
    )
    os.close(terminal)
    try:
        printed = b""
        while awaited not in printed:
            printed += os.read(screen, 4096)
        demo.send_signal(signal_number)
        _, errors = demo.communicate(timeout=90)
    finally:
        demo.kill()
        os.close(screen)

    assert demo.returncode == 128 + signal_number
    assert errors.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []
