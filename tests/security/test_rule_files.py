"""P17 and fuzzing: no rule file stalls a node or raises an undocumented error."""

import time
from random import Random

import pytest

from ringfence.rules.loading.yaml_files import RuleFileError, load_text
from tests.fuzz.rule_files import MAX_BYTES, mutated, resident_bytes, run, seeds

HEAD = "domain: api\ndescriptors:\n"
LIMIT = "unit: minute, requests_per_unit: 5"


def test_mutated_rule_files_are_accepted_or_rejected_in_bounded_time_and_memory() -> None:
    random, files = Random(1), seeds()
    before = resident_bytes()

    are_accepted = [run(mutated(files, random)) for _ in range(600)]

    assert 20 < sum(are_accepted) < 580
    assert resident_bytes() - before < MAX_BYTES


def test_four_thousand_names_that_replace_nothing_are_rejected_within_ten_seconds() -> None:
    lines = [
        f"  - {{key: k{n}, rate_limit: {{{LIMIT}, name: n{n}, replaces: [{{name: m{n}}}]}}}}\n"
        for n in range(4_000)
    ]
    started = time.process_time()

    with pytest.raises(RuleFileError) as caught:
        load_text(HEAD + "".join(lines))

    assert time.process_time() - started < 10
    assert len(caught.value.problems) == 4_000
