from collections import Counter
from itertools import islice

from benchmarks.simulation.replay import log_lines, run
from benchmarks.simulation.replay_loop import LIMIT, decided


def test_replay_and_plain_loops_deny_the_same_number_and_every_figure_is_reported() -> None:
    figures = {figure.name: figure.value for figure in run(1, lines=12_000)}

    assert figures.keys() == {
        "replay.vs_plain_loop",
        "replay.vs_split_loop",
        "replay.cpu_s_per_million_lines",
        "replay.plain_loop_cpu_s_per_million_lines",
        "replay.split_loop_cpu_s_per_million_lines",
        "replay.peak_rss_bytes",
        "replay.peak_rss_growth",
    }
    assert all(value > 0 for value in figures.values())


def test_the_generated_log_is_deterministic_and_its_rare_clients_change() -> None:
    lines = list(log_lines(20_000))

    assert lines == list(islice(log_lines(30_000), 20_000))
    first, second = (
        {line.split(b" ")[0] for line in lines[start : start + 10_000]} for start in (0, 10_000)
    )
    assert 0 < len(first & second) < 200 < len(second)


def test_the_plain_loop_counts_in_a_sliding_window() -> None:
    requests = [("x", 60)] * (LIMIT + 2) + [("y", 60)] + [("x", 150)] * LIMIT

    checks, denied = decided(requests)

    # In the middle of the next minute, half of the first minute still counts.
    assert (checks, denied) == (len(requests), Counter(x=2 + LIMIT // 2))
