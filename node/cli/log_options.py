"""Options of the commands that read an access log: the request that a line stands for."""

from typing import TYPE_CHECKING

import click

from node.replay.tally import DOMAIN, Shape
from ringfence.rules import RuleSet

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["descriptor_option", "domain_option", "verify_shape"]

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
    """Warn about each descriptor that no rule can match. Raises `ConfigError` when the rules lack
    the domain."""
    shape.require_domain(rules, where)
    for problem in shape.unmatched(rules):
        screen.print(f"warning: {where}: {problem}", style="yellow", soft_wrap=True)
