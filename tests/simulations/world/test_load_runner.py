"""Requests of a run: what their answers leave in the ledger."""

from collections import Counter

import pytest
from msgspec.structs import replace

from ringfence.wire import Source
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Fault, Holds, Load, Scenario
from simulations.world import run as run_module
from simulations.world.run import simulate

RULES = """\
domain: sim
descriptors:
  - key: day
    rate_limit: {unit: day, requests_per_unit: 4, algorithm: fixed_window}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 4, algorithm: fixed_window}
  - key: job
    rate_limit: {period: 20s, requests_per_unit: 2, algorithm: concurrency}
"""


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """Return the ledgers of all runs of a test."""
    found: list[Ledger] = []

    class Recorded(run_module.LoadRunner):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            found.append(self.ledger)

    monkeypatch.setattr(run_module, "LoadRunner", Recorded)
    return found


def answers(ledgers: list[Ledger], *loads: Load, holds: tuple[Holds, ...] = ()) -> list[Answered]:
    """Run some loads without faults, first for 3 s and again for 2 s; return all rows."""
    case = Scenario(
        "small",
        "for a test",
        level="core",
        nodes=2,
        seconds=3,
        calm=4,
        calm_load=2,
        rules=RULES,
        loads=loads,
        holds=holds,
    )
    assert simulate(case, 1, "").violations == []
    return [answer for _, answer in ledgers[0].answers]


def test_the_loads_run_again_after_the_calm_on_the_same_keys(ledgers: list[Ledger]) -> None:
    rows = answers(ledgers, Load(rule="day", per_second=20, keys=3))

    first = [row for row in rows if row.asked_at < 3]
    again = [row for row in rows if row.asked_at >= 7]
    assert len(first) + len(again) == len(rows)
    assert {row.key for row in first} == {row.key for row in again} == {"k0", "k1", "k2"}
    assert max(row.asked_at for row in rows) < 9


def test_peeks_spend_nothing_and_answer_for_one_unit(ledgers: list[Ledger]) -> None:
    rows = answers(ledgers, Load(rule="day", per_second=20, keys=1, peeks=0.5, cost=2))

    peeks = [row for row in rows if row.is_uncounted]
    assert {row.cost for row in peeks} == {1}
    assert {row.allowed for row in peeks} == {False, True}
    assert sum(row.cost for row in rows if row.allowed and not row.is_uncounted) == 4


def test_a_shadow_rule_over_its_limit_is_recorded_as_a_denial(ledgers: list[Ledger]) -> None:
    rows = answers(ledgers, Load(rule="shadow", per_second=20, keys=1))

    assert sum(row.allowed for row in rows) == 4
    assert {row.retry_after for row in rows if not row.allowed} == {None}


def test_costs_are_drawn_for_each_check(ledgers: list[Ledger]) -> None:
    rows = answers(ledgers, Load(rule="day", per_second=20, keys=5, costs=(1, 3)))

    assert {row.cost for row in rows} == {1, 3}


@pytest.mark.parametrize("cost_after", [False, True])
def test_the_rows_of_reservations_add_up_to_their_real_costs(
    ledgers: list[Ledger], cost_after: bool
) -> None:
    load = Load(rule="day", per_second=20, keys=20, reservations=1.0, settle_after_s=0.5)
    rows = answers(ledgers, replace(load, cost_after=cost_after))

    estimates = [row for row in rows if row.estimate]
    settled = [row for row in rows if row.is_charge]
    refunded = [
        row for key in ledgers[0].keys("day") for row in ledgers[0].column("day", key).refunded
    ]
    assert {(row.estimate, row.cost) for row in estimates} == {(1, 0), (3, 1), (2, 2), (1, 1)}
    assert {row.cost for row in settled} == {0, 1, 4}
    assert {row.cost for row in refunded} == {1, 2}
    assert all(0 < row.refund_age < row.refund_done_at for row in refunded)
    assert {row.source for row in settled} == {Source.OWNER}
    assert all(row.cost == row.asked_cost for row in rows if not row.allowed)


def test_slots_are_free_at_the_final_reading(ledgers: list[Ledger]) -> None:
    answers(ledgers, holds=(Holds(6, 1, max_wait=3),))


def test_some_denied_checks_are_repeated_around_their_retry_time(ledgers: list[Ledger]) -> None:
    limit = "3/2s sliding_window_log"
    rows = answers(ledgers, Load(rule="mine", limit=limit, per_second=10, keys=1, probes=1.0))

    early = [row for row in rows if row.probe == "early"]
    late = [row for row in rows if row.probe == "late"]
    assert len(late) >= len(early) > 2
    assert not any(row.allowed for row in early)
    assert any(row.allowed for row in late)


@pytest.mark.parametrize("overrides", [False, True])
def test_limits_in_requests_have_counters_of_their_own(
    ledgers: list[Ledger], overrides: bool
) -> None:
    load = Load(rule="mine", limit="2/day fixed_window", overrides=overrides, keys=1)
    rows = answers(ledgers, load, Load(rule="day", per_second=10, keys=1))

    admitted = Counter(rule for rule, row in ledgers[0].answers if row.allowed)
    assert len(rows) > 100
    assert admitted == {"mine": 2, "day": 4}


def test_a_group_has_a_row_for_each_counter(ledgers: list[Ledger]) -> None:
    answers(ledgers, Load(rule="day", also="shadow", per_second=20, keys=1))

    counts = [sum(rule == name for rule, _ in ledgers[0].answers) for name in ("day", "shadow")]
    assert counts[0] == counts[1] > 50
    admitted = [len(ledgers[0].column(name, "k0").admitted) for name in ("day", "shadow")]
    assert admitted == [4, 4]


def test_a_batch_has_a_row_for_each_of_its_keys(ledgers: list[Ledger]) -> None:
    rows = answers(ledgers, Load(rule="day", per_second=4, keys=30, batch=10))

    together = Counter((row.asked_at, row.client) for row in rows)
    assert set(together.values()) == {10}
    assert len({row.key for row in rows}) == 30


def test_a_change_of_the_rule_file_reduces_the_limits_of_all_nodes(ledgers: list[Ledger]) -> None:
    case = Scenario(
        "changed",
        "for a test",
        level="core",
        nodes=2,
        seconds=6,
        calm=1,
        rules=RULES,
        loads=(Load(rule="day", per_second=20, keys=9),),
        faults=(Fault(0, "rules", 3, {"part": 0.5}),),
    )

    assert simulate(case, 1, "").violations == []

    rows = [row for _, row in ledgers[0].answers if row.allowed]
    before = Counter(row.key for row in rows if row.answered_at < 3)
    assert max(before.values()) == 2
    assert max(Counter(row.key for row in rows).values()) == 4
