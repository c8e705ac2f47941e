"""`ringfence info`: installed versions, and which limiter engine runs and why."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import click

from node.cli.common import as_json, json_option
from ringfence.peering.engine_choice import ENVIRONMENT, chosen_engine

__all__ = ["info"]

_PACKAGES = ("ringfence", "trio", "anyio", "aioquic", "msgpack", "mmh3")


@click.command()
@json_option
def info(json_: bool) -> None:
    """Print which limiter engine runs here and why, and the versions of its dependencies.

    Exit status: 0, or 2 when RINGFENCE_ENGINE names an engine that is not installed.
    """
    choice = chosen_engine()
    facts = {
        "engine": choice.name,
        "because": choice.reason,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{sys.platform} {platform.machine()}",
        **{package: _version_of(package) for package in _PACKAGES},
    }
    if json_:
        as_json(facts)
        return
    width = max(map(len, facts))
    for name, fact in facts.items():
        click.echo(f"{name:{width}}  {fact}")
    if not choice.is_compiled:
        click.echo(
            "The reference engine is exact but slower; "
            f"see docs/internals/limiter-engines and {ENVIRONMENT}."
        )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
