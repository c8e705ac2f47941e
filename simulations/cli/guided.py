"""Guided search of `ringfence simulate swarm --guided`: progress, findings and comparison."""

from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from node.cli.common import as_json, console, reader_may_be_gone
from simulations.cli.findings import finding_row, save_finding, show_finding
from simulations.scenarios.scenario import Level
from simulations.searching.guided import Guided, search_guided
from simulations.searching.shrink import Finding, shrink
from simulations.swarm import Run, pool

__all__ = ["run_guided"]

_SHRUNK = 5
_SHOWN = 20


def run_guided(
    level: Level, first: int, runs: int, jobs: int, shrink_runs: int, cases: Path, *, is_json: bool
) -> None:
    """Run a guided search and print its results; exit with 1 after a violation."""
    screen = console(stderr=True)
    with (
        pool(jobs) as executor,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} runs"),
            TimeElapsedColumn(),
            console=screen,
            disable=is_json or not screen.is_terminal,
        ) as progress,
    ):
        bar = progress.add_task("guided search", total=None)

        def on_run(run: Run) -> None:
            progress.advance(bar)
            if run.violations:
                progress.print(f"seed {run.seed}: {run.violations[0][0]}: {run.violations[0][1]}")

        found = search_guided(executor, level, first, runs, on_run)
        shrinking = [
            executor.submit(shrink, run.seed, scenario, shrink_runs)
            for scenario, run in (found.failed[:_SHRUNK] if shrink_runs else [])
        ]
        results = [future.result() for future in shrinking]
        findings = [
            save_finding(finding, cases, f"-{number}")
            for number, finding in enumerate(results, 1)
            if finding is not None
        ]
    with reader_may_be_gone():
        _show(found, findings, level, is_json=is_json)
    if found.failed:
        raise SystemExit(1)


def _show(
    found: Guided, findings: list[tuple[Finding, str]], level: Level, *, is_json: bool
) -> None:
    if is_json:
        for finding, command in findings:
            as_json(finding_row(finding, command))
        as_json(
            {
                "level": level,
                "runs": found.runs,
                "varied": found.varied,
                "kept": len(found.kept),
                "failed": len(found.failed),
                "reached": len(found.reached),
                "reached_plain": len(found.plain),
                "only_guided": found.only_guided,
                "only_plain": found.only_plain,
                "cpu_s": round(found.cpu_s, 1),
            }
        )
        return
    screen = console()
    screen.print(
        f"{found.runs} runs, of which {found.varied} varied {len(found.kept)} kept scenarios: "
        f"{len(found.reached)} pairs and counters reached; {found.runs} drawn seeds reached "
        f"{len(found.plain)}",
        highlight=False,
    )
    for who, names in (
        ("the guided search", found.only_guided),
        ("plain drawing", found.only_plain),
    ):
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        if names:
            text = f"only {who} reached {len(names)}: {', '.join(names[:_SHOWN])}{more}"
            screen.print(text, highlight=False)
    for finding, command in findings:
        show_finding(screen, finding, command)
    for _, run in found.failed[len(findings) :]:
        screen.print(f"seed {run.seed}: {run.violations[0][0]}", style="red")
