"""Check of a demo run: `check_demo.py FILE`, with the output of `ringfence demo --json`."""

import json
import sys
from pathlib import Path
from typing import Any

LINES = 10_000
"""Requests in the bundled log."""


def faults(summary: dict[str, Any]) -> list[str]:
    """Return what is wrong in the last line of the demo."""
    expected = {"lines": LINES, "undecided": 0, "over_admitted": 0}
    found = [
        f"{name} is {summary.get(name)!r}, not {value}"
        for name, value in expected.items()
        if summary.get(name) != value
    ]
    missing = {"checks", "allowed", "denied", "killed_node", "nodes"} - summary.keys()
    if missing:
        return [*found, f"{sorted(missing)} missing"]
    if summary["allowed"] + summary["denied"] != summary["checks"] or not summary["denied"]:
        found.append("allowed and denied do not make up the checks")
    if not summary["killed_node"]:
        found.append("no node was killed")
    return found


def main() -> None:
    """Check the file that the command line names."""
    lines = Path(sys.argv[1]).read_text("utf-8").splitlines()
    summary = json.loads(lines[-1]) if lines else {}
    sys.stdout.write(json.dumps(summary) + "\n")
    found = faults(summary)
    if found:
        sys.exit("ringfence demo: " + "; ".join(found))


main()
