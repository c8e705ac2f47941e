"""`ringfence replay --local --clock real` of a log that is still written."""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from node.cli import replay as replay_command
from node.replay.log_formats import Entry
from node.replay.offline import replay_offline
from node.replay.tally import Tally
from tests.node.replay.replay_command import Run


@pytest.fixture
def live_log(tmp_path: Path) -> Iterator[Path]:
    """Create a pipe that contains twelve lines and has no end."""
    path = tmp_path / "live.log"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, b"100\tx\tGET\t/\t200\n" * 12)
    yield path
    os.close(writer)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def ending(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """Return a signal that interrupts the test unless the command handles it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(request.param, interrupt)
    yield request.param
    assert signal.signal(request.param, before) is interrupt


def test_a_signal_ends_a_live_replay_with_its_figures(
    run: Run,
    rules: Path,
    live_log: Path,
    ending: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end_after_the_first(batches: Iterable[Sequence[Entry]]) -> Iterator[Sequence[Entry]]:
        for batch in batches:
            yield batch
            signal.raise_signal(ending)

    def replay(batches: Iterable[Sequence[Entry]], *given: Any, **options: Any) -> Tally:
        return replay_offline(end_after_the_first(batches), *given, **options)

    monkeypatch.setattr(replay_command, "replay_offline", replay)

    result = run("replay", live_log, "--rules", rules, "--local", "--clock", "real")

    assert result.status == 0, result.err
    assert result.out.startswith("12 lines (0 malformed), 12 checks: 10 allowed, 2 denied")
