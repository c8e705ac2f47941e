"""Arguments of short simulated runs, and output without a reader."""

from typing import NoReturn

SHORT = ("--nodes", "3", "--set", "seconds=2", "--set", "calm=2")
AT_CORE = ("--level", "core", *SHORT, "--no-report")


def without_reader(*args: object, **more: object) -> NoReturn:
    """Fail as output to a closed pipe."""
    raise BrokenPipeError
