import gzip
import json
from itertools import groupby
from pathlib import Path

import pytest

from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit, Table

TRACES = Path(__file__).parents[2] / "traces"
EXPECTED = json.loads((TRACES / "expected_counts.json").read_text())
UNITS = {"min": 60 * NS_PER_SECOND, "h": 3600 * NS_PER_SECOND}


@pytest.mark.parametrize("trace", EXPECTED)
def test_a_real_log_gets_exactly_the_denials_that_were_counted_independently(trace: str) -> None:
    instants = requests_by_instant(trace)
    expected = EXPECTED[trace]["denied"]

    found = {
        limit: {algorithm: denials(instants, limit, algorithm) for algorithm in by_algorithm}
        for limit, by_algorithm in expected.items()
    }

    assert found == expected


def denials(instants: list[tuple[int, list[bytes]]], text: str, algorithm: str) -> int:
    amount, unit = text.split("/")
    table = Table(Limit.of_ns(int(amount), UNITS[unit], Algorithm(algorithm)), max_keys=1_000_000)
    return sum(
        table.check_many(clients, [1] * len(clients), now).codes.count(2)
        for now, clients in instants
    )


def requests_by_instant(trace: str) -> list[tuple[int, list[bytes]]]:
    with gzip.open(TRACES / f"{trace}.tsv.gz", "rb") as file:
        rows = [line.split(b"\t", 2)[:2] for line in file]
    return [
        (int(second) * NS_PER_SECOND, [client for _, client in group])
        for second, group in groupby(rows, key=lambda row: row[0])
    ]
