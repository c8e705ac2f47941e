"""What the verbs share: options, machine-readable lines, descriptors as people type them."""

import json
import logging
import sys
import time

import click

from ringfence.client.decision import Decision
from ringfence.client.url import ENVIRONMENT, ClusterUrl, parse_url
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor

__all__ = [
    "as_json",
    "cluster_option",
    "decision_row",
    "json_option",
    "log_to_stderr",
    "need_cluster",
    "parse_descriptor",
]

cluster_option = click.option(
    "--cluster",
    metavar="URL",
    envvar=ENVIRONMENT,
    help="ringfence://TOKEN@HOST:PORT,HOST:PORT?ca=FILE; or else RINGFENCE_URL is taken.",
)
json_option = click.option("--json", "json_", is_flag=True, help="Print JSON for a machine.")


def need_cluster(text: str | None) -> ClusterUrl:
    """Read the address of the cluster; raises `ConfigError` when none was given."""
    if not text:
        raise ConfigError(
            "no cluster address: pass --cluster ringfence://TOKEN@HOST:PORT?ca=FILE, "
            f"or set {ENVIRONMENT}"
        )
    return parse_url(text)


def as_json(value: object) -> None:
    """Print one JSON object on a line of its own."""
    click.echo(json.dumps(value, separators=(", ", ": ")))


def parse_descriptor(entries: tuple[str, ...]) -> Descriptor:
    """Read `key=value` words, in order, as one descriptor."""
    pairs = []
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not (key and equals):
            raise ConfigError(
                f"descriptor entry {entry!r} is not KEY=VALUE; write client=203.0.113.7"
            )
        pairs.append((key, value))
    return Descriptor(tuple(pairs))


def decision_row(decision: Decision) -> dict[str, object]:
    """A decision as a machine reads it; durations in seconds."""
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
    }


def log_to_stderr(level: str) -> None:
    """Write one line of key=value words per event to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        'time=%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s msg="%(message)s"',
        "%Y-%m-%dT%H:%M:%S",
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger("ringfence")
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
