"""Rules of the cluster that the tests of the command use."""

from io import StringIO

from rich.console import Console

from node.cli.cluster.members import show_members

RULES = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 5, algorithm: fixed_window}
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
  - key: small
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
  - key: large
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
"""


def render_members(width: int, *rows: dict[str, object]) -> list[str]:
    reported = StringIO()
    show_members(Console(file=reported, width=width), "node-north-1", list(rows))
    return reported.getvalue().splitlines()
