"""Options of the commands that read an access log: the request that a line stands for."""

import click

from node.replay.tally import DOMAIN

__all__ = ["descriptor_option", "domain_option"]

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
