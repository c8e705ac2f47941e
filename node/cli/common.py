"""Shared parts of the subcommands: options, JSON lines, descriptors from the command line."""

import difflib
import errno
import json
import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from ringfence.client.url import ENVIRONMENT, ClusterUrl, parse_url
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, Rule
from ringfence.rules.descriptor_tree import place

if TYPE_CHECKING:
    from rich.console import Console

    from ringfence.client.decision import Decision

__all__ = [
    "EXIT_WRONG_INPUT",
    "IntegerRange",
    "NumberRange",
    "Output",
    "VerbGroup",
    "as_json",
    "cluster_option",
    "console",
    "decision_row",
    "descriptor_option",
    "drop_output",
    "json_option",
    "log_to_stderr",
    "need_cluster",
    "parse_descriptors",
    "printable",
    "reader_may_be_gone",
    "rule_place",
]

EXIT_WRONG_INPUT = 2

_WIDE = 160
"""Width of a table that is written to a file or a pipe."""

cluster_option = click.option(
    "--cluster",
    metavar="URL",
    envvar=ENVIRONMENT,
    help="ringfence://HOST:PORT,HOST:PORT?ca=FILE&token_file=FILE; RINGFENCE_URL when absent. "
    "A token itself, as in ringfence://TOKEN@HOST, belongs into RINGFENCE_URL: other users of this "
    "host can read arguments.",
)
descriptor_option = click.option(
    "--descriptor",
    "-d",
    "others",
    multiple=True,
    metavar="KEY=VALUE,KEY=VALUE",
    help="One more descriptor of the same request; repeatable.",
)
json_option = click.option("--json", "json_", is_flag=True, help="Print JSON for a machine.")


class IntegerRange(click.IntRange):
    """Range of integers for an option; its name is in the error for another text."""

    name = "integer"


class NumberRange(click.FloatRange):
    """Range of numbers for an option. It rejects `nan`, which no comparison excludes."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number. Raises `BadParameter` outside the range."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail("must be a number, got nan", param, ctx)
        return number


class VerbGroup(click.Group):
    """A command group that suggests a similar subcommand for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand. Raises `UsageError` with a suggestion for an unknown name."""
        word = args[0]
        verbs = self.list_commands(ctx)
        if word in verbs or word.startswith("-"):
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(word, verbs, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(verbs)}"
        raise click.UsageError(f"there is no command {word!r}; {hint}", ctx)


def need_cluster(text: str | None) -> ClusterUrl:
    """Return the address of the cluster. Raises `ConfigError` when none was given."""
    if not text:
        raise ConfigError(
            "no cluster address: pass --cluster 'ringfence://HOST:PORT?ca=FILE&token_file=FILE', "
            f"or set {ENVIRONMENT}"
        )
    return parse_url(text)


class Output:
    """Output of a subcommand: the standard streams of this process, or two files."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out
        self._err = err

    def line(self, text: str) -> None:
        """Print a line, unless its reader has gone."""
        with reader_may_be_gone():
            click.echo(text, self._out)

    def error(self, text: str) -> None:
        """Print a line about a failure, on standard error."""
        click.echo(text, self._err, err=True)

    def json(self, value: object) -> None:
        """Print a value as one JSON object on one line."""
        self.line(_json_line(value))

    def console(self) -> "Console":
        """Return a console for tables."""
        return console(file=self._out)


def as_json(value: object) -> None:
    """Print a value as one JSON object on one line."""
    click.echo(_json_line(value))


def _json_line(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "))


@contextmanager
def reader_may_be_gone() -> Iterator[None]:
    """Drop the output if its reader has gone, so that the command ends with its usual status."""
    try:
        yield
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """Discard further output, because a closed pipe would cause another error, also at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
        os.close(nowhere)


def console(*, stderr: bool = False, file: TextIO | None = None) -> "Console":
    """Return a console without markup, because rules and logs may contain brackets.

    The console raises `BrokenPipeError` when the reader closes the pipe.
    """
    from rich.console import Console  # Imported late: a node prints no tables.

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the reader has seen enough")

    screen = sys.stderr if stderr else sys.stdout
    narrow = file is None and (screen.isatty() or "COLUMNS" in os.environ)
    return PipeConsole(
        file=file,
        stderr=stderr,
        markup=False,
        emoji=False,
        highlight=False,
        width=None if narrow else _WIDE,
    )


def printable(text: str) -> str:
    """Escape control characters of untrusted text for a terminal."""
    return "".join([each if each.isprintable() else "?" for each in text])


def parse_descriptors(
    verb: str, entries: tuple[str, ...], others: tuple[str, ...]
) -> list[Descriptor]:
    """Read the descriptors of a request: `key=value` words, in order, and those of
    `descriptor_option`.

    Raises `ConfigError` if a word is malformed, or if there is nothing to `verb`.
    """
    words = [entries] if entries else []
    words += [tuple(other.split(",")) for other in others]
    if not words:
        raise ConfigError(f"nothing to {verb}: give KEY=VALUE words, as in client=203.0.113.7")
    return [_parse_descriptor(each) for each in words]


def _parse_descriptor(entries: tuple[str, ...]) -> Descriptor:
    pairs = []
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not (key and equals):
            raise ConfigError(
                f"a descriptor entry must be KEY=VALUE such as client=203.0.113.7, got {entry!r}"
            )
        pairs.append((key, value))
    return Descriptor(tuple(pairs))


def rule_place(rule: Rule | None) -> str | None:
    """Return the path of a rule as text, such as `log > client`; None for a limit without a
    rule."""
    return None if rule is None or not rule.domain else place(rule.domain, rule.path)


def decision_row(decision: "Decision") -> dict[str, object]:
    """Return a decision as JSON values; durations in seconds."""
    return {
        "allowed": decision.allowed,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "reset_after": decision.reset_after,
        "delay": decision.delay,
        "source": decision.source.name.lower(),
        "permanent": decision.is_permanent,
        "over_soft": decision.over_soft,
        "over_shadow": decision.over_shadow,
        "rule": rule_place(decision.rule),
        **({} if decision.refunded is None else {"refunded": decision.refunded}),
    }


class _Line(logging.Formatter):
    """Formatter that writes each log event as one line, with the name of a node if given."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        words = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            **({"node": self._node} if self._node else {}),
            "logger": record.name,
            "msg": json.dumps(record.getMessage(), ensure_ascii=False),
        }
        if record.exc_info:
            words["exc"] = json.dumps(self.formatException(record.exc_info), ensure_ascii=False)
        return " ".join(f"{key}={word}" for key, word in words.items())


@contextmanager
def log_to_stderr(level: str, node: str = "") -> Iterator[None]:
    """Log events to standard error while the block runs, one line of key=value words each.

    `node` is the name in each line, for a process that shares its standard error with others.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(node))
    root = logging.getLogger("ringfence")
    before = root.level, root.propagate
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        root.propagate = before[1]
