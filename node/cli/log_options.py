"""Common options and messages of the commands that read an access log."""

from typing import TYPE_CHECKING

import click

from node.cli.common import EXIT_WRONG_INPUT, as_json, rule_place
from node.replay.logs import Defect, LogReader
from node.replay.tally import DOMAIN, Shape
from ringfence.limiter import Algorithm
from ringfence.rules import RuleSet, format_limit

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "descriptor_option",
    "domain_option",
    "log_figures",
    "require_complete",
    "show_problems",
    "verify_shape",
]

domain_option = click.option(
    "--domain", default=DOMAIN, show_default=True, help="Domain of the rules that apply to the log."
)
descriptor_option = click.option(
    "--descriptor",
    "-d",
    "descriptors",
    multiple=True,
    default=("client",),
    show_default=True,
    metavar="FIELD,KEY=FIELD",
    help="Fields of a line that make a descriptor: client, method, path, status; repeatable. "
    "Write KEY=FIELD when the rules have another key, as in remote_address=client.",
)


def verify_shape(shape: Shape, rules: RuleSet, where: str, screen: "Console") -> None:
    """Warn about each descriptor that no rule can match, and about rules that need the ends of
    requests. Raises `ConfigError` when the rules lack the domain."""
    shape.require_domain(rules, where)
    slots = [
        f"{rule_place(rule)}: a log has no ends of requests, so each line holds its slot for the "
        f"whole time of the limit {format_limit(rule.limit)}"
        for rule in rules.rules()
        if rule.domain == shape.domain
        and rule.limit is not None
        and rule.limit.algorithm is Algorithm.CONCURRENCY
    ]
    for problem in shape.unmatched(rules) + slots:
        screen.print(f"warning: {where}: {problem}", style="yellow", soft_wrap=True)


def show_problems(reader: LogReader, screen: "Console", *, json_: bool) -> None:
    """Print the first lines of a log that could not be parsed."""
    for problem in reader.problems:
        if json_:
            as_json({"malformed_line": problem.line, "why": problem.why})
        else:
            screen.print(f"line {problem.line}: {problem.why}", style="yellow")


def require_complete(reader: LogReader) -> None:
    """Exit for invalid input, after the result, if the log is incomplete or damaged."""
    if reader.defect is not None:
        click.echo(reader.defect, err=True)
        raise SystemExit(EXIT_WRONG_INPUT)


def log_figures(reader: LogReader) -> dict[str, object]:
    """Return the figures of a log that was read, as JSON values."""
    return {
        "lines": reader.lines,
        "malformed": reader.malformed,
        "truncated": reader.defect is not None,
        "damaged": reader.defect is Defect.DAMAGED,
    }
