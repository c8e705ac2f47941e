"""Runs of the command `ringfence` in the process of a test."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.cli import command

__all__ = ["Ran", "Run", "invoke", "refused"]


@dataclass
class Ran:
    """Result of a command that has ended."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the JSON output."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> dict[str, Any]:
        """Return the only row of the JSON output."""
        [row] = self.rows
        assert isinstance(row, dict)
        return row


Run = Callable[..., Ran]


def invoke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str | Path
) -> Ran:
    """Run the command with these words."""
    monkeypatch.setattr("sys.argv", ["ringfence", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        command.main()
    output = capsys.readouterr()
    return Ran(int(left.value.code or 0), output.out, output.err)


def refused(ran: Ran, status: int = 2) -> str:
    """Check the form of an error and return its text."""
    assert ran.status == status
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") <= 4
    return ran.err
