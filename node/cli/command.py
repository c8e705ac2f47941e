"""The `ringfence` command: its subcommands, error messages and exit status."""

import errno
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from typing import Any, NoReturn

import click
from msgspec.structs import asdict

from node.cli.common import EXIT_WRONG_INPUT, VerbGroup, as_json, drop_output
from ringfence import __version__
from ringfence.errors import PeerUnavailable, RingfenceError, mask_tokens
from ringfence.rules.loading.problems import Problem, RuleFileError

__all__ = ["exit_status", "main", "ringfence"]

EXIT_UNREACHABLE = 3
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _ReaderGone(Exception):
    """Signal that the reader of the output, such as `head`, has closed the pipe."""


_MODULES = {
    "check": "node.cli.cluster.check",
    "demo": "node.cli.demo",
    "gateway": "node.cli.gateway",
    "info": "node.cli.info",
    "keys": "node.cli.keys",
    "leave": "node.cli.cluster.leave",
    "members": "node.cli.cluster.members",
    "node": "node.cli.node",
    "replay": "node.cli.replay",
    "rules": "node.cli.rules",
    "simulate": "simulations.cli",
    "throttled": "node.cli.cluster.throttled",
    "why": "node.cli.cluster.why",
}
"""Modules of the subcommands. Only the requested one is imported, so a node starts faster."""


class _Verbs(VerbGroup):
    """Command group that exits normally when the reader closes the pipe, where Click would report a
    failure."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        verb = getattr(import_module(_MODULES[cmd_name]), cmd_name)
        assert isinstance(verb, click.Command)
        return verb

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Parse the arguments, which prints the help if they ask for it."""
        with _without_reader():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> object:
        with _without_reader():
            return super().invoke(ctx)


@contextmanager
def _without_reader() -> Iterator[None]:
    """Raise `_ReaderGone` for a closed pipe, because Click would end with status 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ringfence")
def ringfence() -> None:
    """A distributed peer-to-peer rate limiter.

    Exit status: 0 allowed or done, 1 denied or a failed check, 2 wrong input, 3 no member of the
    cluster could be reached.
    """


def main() -> None:
    """Run the command; print expected errors as one message without a traceback."""
    # Subcommands print their own errors; those that log install a handler.
    logging.getLogger("ringfence").addHandler(logging.NullHandler())
    try:
        status = ringfence.main(prog_name="ringfence", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            _suggest_no_hidden_options(error)
        shown = StringIO()
        error.show(shown)
        click.echo(mask_tokens(shown.getvalue()), err=True, nl=False)
        _exit_with_error(error.exit_code, mask_tokens(error.format_message()))
    except (click.Abort, KeyboardInterrupt):
        _interrupted()
    except (_ReaderGone, BrokenPipeError):
        _seen_enough()
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        click.echo(f"ringfence: the output cannot be written: {error.strerror}", err=True)
        drop_output()
        sys.exit(EXIT_WRONG_INPUT)
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


def _suggest_no_hidden_options(error: click.NoSuchOption) -> None:
    if error.possibilities and error.ctx is not None:
        options = [each for each in error.ctx.command.params if isinstance(each, click.Option)]
        hidden = {name for option in options if option.hidden for name in option.opts}
        error.possibilities[:] = [each for each in error.possibilities if each not in hidden]


def _seen_enough() -> NoReturn:
    """Exit with status 0, because a closed pipe is not a failure."""
    drop_output()
    sys.exit(0)


def _interrupted() -> NoReturn:
    click.echo("ringfence: interrupted", err=True)
    sys.exit(130)


def _fail(error: RingfenceError) -> NoReturn:
    message = mask_tokens(str(error))
    click.echo(f"ringfence: {message}", err=True)
    _exit_with_error(
        exit_status(error), message, error.problems if isinstance(error, RuleFileError) else ()
    )


def _exit_with_error(status: int, message: str, problems: Sequence[Problem] = ()) -> NoReturn:
    """Exit after an error; with --json, also print it as JSON, so that programs can read it."""
    if "--json" in sys.argv:
        row = {"error": message, "status": status, "problems": [asdict(each) for each in problems]}
        try:
            as_json(row)
        except OSError:  # The text on standard error has the same facts.
            drop_output()
    sys.exit(status)


def exit_status(error: RingfenceError) -> int:
    """Return the exit status of a command that ends with an expected error."""
    return EXIT_UNREACHABLE if isinstance(error, PeerUnavailable) else EXIT_WRONG_INPUT


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for inner in group.exceptions:
        leaves += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return leaves
