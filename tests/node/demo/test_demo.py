"""The demonstration, whole: three processes, a real log, a kill, and an independent verdict."""

import gzip
import json
import os
import pty
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
"""Of the log's ten thousand: the check of the installed command replays them all."""
ROOT = Path(__file__).parents[3]


def test_the_demo_loses_a_node_and_neither_an_answer_nor_a_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    beginning = tmp_path / "access.log"
    with gzip.open(ROOT / "node" / "demo" / "semicomplete-2015-05.log.gz") as whole:
        beginning.write_bytes(b"".join(islice(whole, LINES)))
    monkeypatch.setattr(show, "read_log", lambda path: read_log(beginning))
    monkeypatch.setattr("sys.argv", ["ringfence", "demo", "--json", "--speed", "200000"])

    with pytest.raises(SystemExit) as left:
        command.main()

    reported = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not left.value.code, reported
    assert reported["lines"] == reported["checks"] == LINES
    assert reported["allowed"] + reported["denied"] == LINES
    assert reported["denied"] > 0
    assert reported["errors"] == 0
    assert reported["over_admitted"] == 0
    assert reported["judged_keys"] > 0
    assert reported["decisions_by_source"]["standby"] > 0
    shares = reported["decisions_by_node"]
    assert set("abc") <= shares.keys()
    for column in ("checks", "allowed", "denied"):
        assert sum(share[column] for share in shares.values()) == reported[column]
    assert sum(share["as_standby"] for share in shares.values()) > 0
    alive = {node["name"]: node["alive"] for node in reported["nodes"]}
    assert alive == {name: name != reported["killed_node"] for name in "abc"}


def test_the_first_frame_comes_before_any_node_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_starts(rules: Path) -> NoReturn:
        raise PeerUnavailable("nothing was started")

    monkeypatch.setattr(show, "started_cluster", none_starts)
    monkeypatch.setattr("sys.argv", ["ringfence", "demo"])

    with pytest.raises(SystemExit) as left:
        command.main()

    assert left.value.code == 3
    reported = capsys.readouterr()
    assert reported.err == "ringfence: nothing was started\n"
    first, rule, *_, last = reported.out.splitlines()
    assert first == "Three nodes on this host limit the log of a real web server."
    assert rule == "Rule: each client may make 20 requests in any 10 s."
    assert last == "starting nodes: 0 of 3 are up"


def test_a_machine_reads_latencies_in_milliseconds_to_the_microsecond(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_demo(seen: Demo, on_change: object) -> DemoResult:
        return DemoResult(10, 0, Tally(), 0, 1, {}, {}, "a", [], 0.0012346, 0.0123456)

    monkeypatch.setattr(demo_command, "run_demo", run_demo)

    assert invoke(monkeypatch, capsys, "demo", "--json").row["latency_ms"] == {
        "p50": 1.235,
        "p99": 12.346,
    }


def halfway(**more: Any) -> Demo:
    seen = Demo(
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
    return replace(seen, **more)


def shown(seen: Demo, width: int) -> list[str]:
    reported = StringIO()
    Console(file=reported, width=width).print(picture(seen))
    return reported.getvalue().splitlines()


@pytest.mark.parametrize("width", [66, 80])
def test_the_picture_keeps_what_the_killed_node_decided_and_its_columns_add_up(width: int) -> None:
    lines = shown(halfway(), width)

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


def test_at_the_end_nothing_goes_on() -> None:
    lines = shown(halfway(is_over=True), 80)

    assert "node a was killed (SIGKILL) half way" in lines
    assert "go on" not in "".join(lines)


def test_no_latency_is_shown_before_the_first_check() -> None:
    text = "\n".join(shown(Demo(12_000, total=10_000, up={"b"}), 80))

    assert "starting nodes: 1 of 3 are up" in text
    assert "latency" not in text


def test_a_line_of_progress_says_what_the_picture_says() -> None:
    assert progress_line(Demo(12_000, up={"b"})) == "starting nodes: 1 of 3 are up"
    assert progress_line(halfway()) == (
        "5 s: 8000 of 10000 requests, 6500 allowed, 1500 denied; node a was killed"
    )


def test_an_interrupt_in_the_middle_of_a_start_waits_until_it_can_be_undone(
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


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "seen"),
    [
        (signal.SIGTERM, b"starting nodes"),
        (signal.SIGINT, b"starting nodes"),
        (signal.SIGINT, b"all nodes are up"),
    ],
)
def test_a_demo_that_is_ended_leaves_no_keys_and_no_node_behind(
    tmp_path: Path, number: signal.Signals, seen: bytes
) -> None:
    screen, terminal = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-m", "node.entry", "demo", "--speed", "100"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
        # A shell that runs the tests in the background has SIGINT ignored in all below it.
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - it only sets a signal
    )
    os.close(terminal)
    try:
        printed = b""
        while seen not in printed:
            printed += os.read(screen, 4096)
        demo.send_signal(number)
        _, said = demo.communicate(timeout=90)
    finally:
        demo.kill()
        os.close(screen)

    assert demo.returncode == 128 + number
    assert said.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []
