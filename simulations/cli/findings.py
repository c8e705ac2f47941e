"""Shrunk findings of a swarm: case files, and output as text and JSON."""

import shlex
from pathlib import Path

from rich.console import Console

from simulations.cli.stories import show_story
from simulations.searching.case_files import write_case
from simulations.searching.shrink import Finding

__all__ = ["finding_row", "save_finding", "show_finding"]


def save_finding(finding: Finding, folder: Path, mark: str = "") -> tuple[Finding, str]:
    """Write the case file of a finding; return the finding and the command that repeats it."""
    case = finding.case
    path = folder / f"ringfence-{case.scenario.name}-{case.seed}{mark}.yaml"
    write_case(case, path)
    return finding, shlex.join(["ringfence", "simulate", "case", str(path)])


def finding_row(finding: Finding, command: str) -> dict[str, object]:
    """Return a finding as a row of JSON values."""
    return {
        "seed": finding.case.seed,
        "violated": finding.violated,
        "violations": [list(each) for each in finding.violations],
        "events": finding.events,
        "faults": [str(fault) for fault in finding.case.scenario.faults],
        "story": finding.story.lines(),
        "runs": finding.runs,
        "command": command,
    }


def show_finding(screen: Console, finding: Finding, command: str) -> None:
    """Print the story of a finding and the command that repeats it."""
    show_story(screen, finding.story)
    events = "1 event" if finding.events == 1 else f"{finding.events} events"
    screen.print(f"shrunk to {events} in {finding.runs} runs; again:", highlight=False)
    screen.print(command, soft_wrap=True, highlight=False)
