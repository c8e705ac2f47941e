"""The command itself: help, version, and output that cannot be written."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from node import entry
from node.cli.command import ringfence
from node.cli.common import log_to_stderr
from tests.invocation import Run, refused
from tests.node.cli.cluster_rules import RULES

ROOT = Path(__file__).parents[3]


def test_help_and_version_exit_without_error(run: Run) -> None:
    assert "Exit status" in run("--help").out
    assert run("--version").status == 0
    for verb in (
        "node",
        "demo",
        "check",
        "replay",
        "rules",
        "keys",
        "members",
        "leave",
        "throttled",
        "why",
    ):
        assert run(verb, "--help").status == 0


def test_the_help_states_the_defaults_of_all_options() -> None:
    undocumented = [
        (context.command_path, option.name)
        for context in commands(click.Context(ringfence, info_name="ringfence"))
        for option in context.command.params
        if isinstance(option, click.Option) and type(option.default) in (int, float, str)
        if f"default: {option.default}" not in " ".join(context.get_help().split())
    ]

    assert undocumented == []


def test_no_option_with_a_range_of_numbers_accepts_nan() -> None:
    ranges = [
        (option, context)
        for context in commands(click.Context(ringfence, info_name="ringfence"))
        for option in context.command.params
        if isinstance(option.type, click.FloatRange)
    ]

    assert len(ranges) > 5
    for option, context in ranges:
        with pytest.raises(click.BadParameter, match="must be a number, got nan"):
            option.type.convert("nan", option, context)


def commands(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of all its subcommands."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            inner = context.command.get_command(context, name)
            assert inner is not None
            yield from commands(click.Context(inner, parent=context, info_name=name))


def test_a_closed_output_pipe_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES, "utf-8")
    reader, writer = os.pipe()
    os.close(reader)

    completed = subprocess.run(
        [sys.executable, "-m", "node.entry", "rules", "check", path],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=90,
        check=False,
    )
    os.close(writer)

    assert (completed.returncode, completed.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "status"),
    [("--version", 0), ("info", 0), ("rules check README.md", 2), ("members --cluster x", 2)],
)
def test_a_command_without_any_open_stream_has_its_usual_exit_status(
    words: str, status: int
) -> None:
    command = f"{sys.executable} -m node.entry {words} <&- >&- 2>&-"

    completed = subprocess.run(["sh", "-c", command], cwd=ROOT, timeout=90, check=False)

    assert completed.returncode == status


def test_ctrl_c_before_the_commands_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "node.cli.command":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "node.cli.command", raising=False)
    monkeypatch.setattr(entry, "defer_garbage_collection", lambda: None)

    with pytest.raises(SystemExit) as ended:
        entry.main()

    assert (ended.value.code, capsys.readouterr().err) == (130, "ringfence: interrupted\n")


@pytest.mark.parametrize(
    "words", [["rules", "check", "FILE"], ["rules", "check", "FILE", "--json"]]
)
def test_a_failed_write_of_the_output_is_reported_in_one_line(
    tmp_path: Path, words: list[str]
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES, "utf-8")

    with Path("/dev/full").open("wb") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "node.entry", *(str(path) if w == "FILE" else w for w in words)],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=90,
            check=False,
        )

    assert completed.returncode == 2
    assert completed.stderr == (
        b"ringfence: the output cannot be written: No space left on device\n"
    )


def test_log_lines_of_several_processes_contain_the_name_of_the_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with log_to_stderr("info", "web-1"):
        logging.getLogger("ringfence.node").info("up")

    assert capsys.readouterr().err.endswith(
        ' level=INFO node=web-1 logger=ringfence.node msg="up"\n'
    )


def test_log_lines_show_letters_of_all_languages_and_escape_line_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with log_to_stderr("info"):
        logging.getLogger("ringfence.node").info("node größe\nis up")

    assert capsys.readouterr().err.endswith(
        ' level=INFO logger=ringfence.node msg="node größe\\nis up"\n'
    )


@pytest.mark.parametrize(
    ("workers", "is_valid"), [("0", False), ("1", True), ("64", True), ("65", False)]
)
def test_a_gateway_has_1_to_64_workers(run: Run, workers: str, is_valid: bool) -> None:
    message = refused(run("gateway", "--workers", workers, "--config", "nowhere.toml"))

    assert ("nowhere.toml" in message) is is_valid
