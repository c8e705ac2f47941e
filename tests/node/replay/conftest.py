"""The command in this process, a file of rules, and a log."""

from pathlib import Path

import pytest

from node.cli import command
from tests.node.replay.replay_command import CommandResult, Run, rules_of


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process."""
    monkeypatch.delenv("RINGFENCE_URL", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run_command(*arguments: str | Path) -> CommandResult:
        monkeypatch.setattr("sys.argv", ["ringfence", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            command.main()
        output = capsys.readouterr()
        return CommandResult(int(exited.value.code or 0), output.out, output.err)

    return run_command


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(rules_of("10/min", "fixed_window"), "utf-8")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "trace.tsv"
    path.write_text("".join(f"{i}\t{path.parent}\tGET\t/{i}\t200\n" for i in range(40)), "utf-8")
    return path
