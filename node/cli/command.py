"""The group of verbs, and how errors become one line and an exit status."""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

import click

from node.cli.checking import check, members
from node.cli.demonstrating import demo
from node.cli.keys import keys
from node.cli.replaying import replay
from node.cli.rules import rules
from node.cli.running import node
from ringfence.errors import PeerUnavailable, RingfenceError

__all__ = ["main", "ringfence"]

EXIT_WRONG_INPUT = 2
EXIT_UNREACHABLE = 3


def _version() -> str:
    try:
        return version("ringfence")
    except PackageNotFoundError:
        return "not installed"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="ringfence")
def ringfence() -> None:
    """A rate limiter that is a cluster of equals.

    Exit status: 0 allowed or done, 1 denied or a check that failed, 2 wrong input, 3 no member of
    the cluster could be reached.
    """


for verb in (node, demo, check, replay, rules, keys, members):
    ringfence.add_command(verb)


def main() -> None:
    """Run the command; every foreseen error is one message without a traceback."""
    try:
        sys.exit(ringfence.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _interrupted()
    except BrokenPipeError:
        sys.stderr.close()  # The reader has seen enough; Python would complain about it at exit.
        sys.exit(0)
    except RingfenceError as error:
        _fail(error)
    except BaseExceptionGroup as group:
        leaves = _leaves(group)
        causes = [leaf for leaf in leaves if isinstance(leaf, RingfenceError)]
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
            _interrupted()
        if not causes:
            raise
        _fail(causes[0])


def _interrupted() -> NoReturn:
    click.echo("ringfence: interrupted", err=True)
    sys.exit(130)


def _fail(error: RingfenceError) -> NoReturn:
    click.echo(f"ringfence: {error}", err=True)
    sys.exit(EXIT_UNREACHABLE if isinstance(error, PeerUnavailable) else EXIT_WRONG_INPUT)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for inner in group.exceptions:
        leaves += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return leaves
