"""Exit status and message of the command for each kind of error."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from node.cli import command
from node.cli.common import Output
from ringfence.errors import ConfigError, PeerUnavailable, RingfenceError
from ringfence.rules.loading.problems import Problem, RuleFileError
from tests.invocation import Run


class Refusal(RingfenceError):
    """An expected error of another kind."""


@pytest.fixture(autouse=True)
def _keep_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command whose output cannot be written redirects the standard output of its process."""
    with (tmp_path / "output").open("w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "__stdout__", output)
        yield


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (SystemExit(0), 0, ""),
        (SystemExit(1), 1, ""),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "the output cannot be written: No s"),
        (OSError(errno.EDQUOT, "Quota exceeded"), 2, "the output cannot be written: Quota exceede"),
        (OSError(errno.EFBIG, "File too large"), 2, "the output cannot be written: File too large"),
        (OSError(errno.EIO, "Input/output error"), 2, "the output cannot be written: Input/output"),
        (ConfigError("limit must be 1"), 2, "ringfence: limit must be 1\n"),
        (Refusal("no"), 2, "ringfence: no\n"),
        (PeerUnavailable("no member answers"), 3, "ringfence: no member answers\n"),
        (KeyboardInterrupt(), 130, "ringfence: interrupted\n"),
        (click.Abort(), 130, "ringfence: interrupted\n"),
        (click.UsageError("no such option"), 2, "Error: no such option"),
        (click.UsageError("got ringfence://a.00@h:1"), 2, "Error: got ringfence://...@h:1"),
        (click.UsageError(f"no option --a.{'0f' * 32}"), 2, "Error: no option --a....\n"),
        (PeerUnavailable(f"no node at a.{'0f' * 32}"), 3, "ringfence: no node at a....\n"),
        (ExceptionGroup("", [PeerUnavailable("gone")]), 3, "ringfence: gone\n"),
        (
            ExceptionGroup("", [ExceptionGroup("", [ValueError(), ConfigError("bad")])]),
            2,
            "ringfence: bad\n",
        ),
        (
            BaseExceptionGroup("", [ConfigError("bad"), KeyboardInterrupt()]),
            130,
            "ringfence: interrupted\n",
        ),
    ],
    ids=repr,
)
def test_an_expected_error_ends_the_command_with_a_status_and_one_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, message: str
) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(command.ringfence, "main", fail)

    ran = run("check")

    assert (ran.status, ran.out) == (status, "")
    assert message in ran.err
    assert bool(ran.err) is bool(message)


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (PeerUnavailable("gone"), {"error": "gone", "status": 3, "problems": []}),
        (ExceptionGroup("", [ConfigError("bad")]), {"error": "bad", "status": 2, "problems": []}),
        (Refusal(f"a.{'0f' * 32}"), {"error": "a....", "status": 2, "problems": []}),
        (click.UsageError("no such"), {"error": "no such", "status": 2, "problems": []}),
        (
            click.UsageError("got 'ringfence://app.00@h'"),
            {"error": "got 'ringfence://...@h'", "status": 2, "problems": []},
        ),
        (
            RuleFileError([Problem("a.yaml", 3, "api", "bad", "fix it")]),
            {
                "error": "a.yaml:3: api: bad; fix it",
                "status": 2,
                "problems": [
                    {"file": "a.yaml", "line": 3, "place": "api", "what": "bad", "fix": "fix it"}
                ],
            },
        ),
    ],
    ids=repr,
)
def test_with_json_an_expected_error_is_also_printed_as_json(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, row: dict[str, object]
) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(command.ringfence, "main", fail)

    ran = run("check", "--json")

    assert ran.row == row
    assert (ran.status, str(row["error"]) in ran.err) == (row["status"], True)


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left")])
def test_an_error_that_cannot_be_printed_as_json_keeps_its_status(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fail(*words: object, **options: object) -> None:
        raise ConfigError("bad") if options else error

    monkeypatch.setattr(command.ringfence, "main", fail)
    monkeypatch.setattr(command, "as_json", fail)

    ran = run("check", "--json")

    assert (ran.status, ran.out, ran.err) == (2, "", "ringfence: bad\n")


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOENT, "no file"), ValueError("bug"), ExceptionGroup("", [ValueError()])],
)
def test_an_unexpected_error_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(command.ringfence, "main", fail)

    with pytest.raises(type(error)) as caught:
        command.main()
    assert caught.value is error


def test_output_without_a_reader_is_discarded_so_that_a_denial_keeps_its_status() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    pipe = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - closing it fails

    Output(pipe).line("denied")
    Output(pipe).json({"allowed": False})

    with pytest.raises(BrokenPipeError):
        pipe.close()


def test_the_help_without_a_reader_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "node.entry", "--help"]

    ran = subprocess.run(words, check=False, stdout=writing, stderr=subprocess.PIPE)

    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, b"")
