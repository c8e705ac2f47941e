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

import pytest
from rich.console import Console

from node.cli import command
from node.cli.demonstrating import picture
from node.demo import show
from node.demo.show import Demo
from node.replay.logs import read_log
from ringfence.wire import MemberRow

LINES = 3000
"""Of the log's ten thousand: the check of the installed command replays them all."""
ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("width", [60, 80])
def test_the_picture_tells_the_news_on_a_narrow_screen(width: int) -> None:
    counters = {"owned_shards": 5461, "checks": 5000, "allowed": 4000, "denied": 1000}
    seen = Demo(
        total=10_000,
        done=10_000,
        killed="a",
        rows=[
            (MemberRow(name, "127.0.0.1", 7101, "dc1", "", 1.0, "alive"), counts)
            for name, counts in [("a", None), ("b", counters), ("c", None)]
        ],
        latencies=[0.001],
    )
    told = StringIO()

    Console(file=told, width=width).print(picture(seen))

    lines = told.getvalue().splitlines()
    assert lines[0].rstrip().endswith("  10000 of 10000 requests")
    assert lines[1] == "node a was killed (SIGKILL), checks go on"
    assert lines[2] == "latency p50 1.00 ms, p99 1.00 ms"
    assert " ".join(lines[3].split()) == "node shards checks allowed denied forwarded stood in"
    assert len(lines) == 7


def test_no_latency_is_told_before_the_first_check() -> None:
    told = StringIO()

    Console(file=told, width=80).print(picture(Demo()))

    assert "latency" not in told.getvalue()


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_ended_leaves_no_keys_and_no_node_behind(
    tmp_path: Path, number: signal.Signals
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
        shown = b""
        while b"shards" not in shown:  # The nodes are up.
            shown += os.read(screen, 4096)
        demo.send_signal(number)
        _, said = demo.communicate(timeout=30)
    finally:
        demo.kill()
        os.close(screen)

    assert demo.returncode == 128 + number
    assert said.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []
