"""Leases of an owner: how it counts lent units and when it recalls them."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from node.requests.leases.lease_grants import Lender
from node.requests.refunds.refund_ledger import RefundLedger
from ringfence.limiter import NS_PER_SECOND, Algorithm, Code, Engine, EngineRule, Limit, Outcomes
from ringfence.rules import adhoc_rule, encode_key
from ringfence.wire import UNKNOWN_LEASE, Batch, LeaseGrant, LeaseRequest, Op

LIMIT = Limit.of_ns(1000, 60 * NS_PER_SECOND, Algorithm.FIXED_WINDOW)
RULE = adhoc_rule(LIMIT)
KEY, OTHER = encode_key(RULE.id, ("hot",)), encode_key(RULE.id, ("other",))


class Lending:
    """Lender of one rule, with a record of its callbacks."""

    def __init__(
        self, limit: Limit = LIMIT, /, uptime: Callable[[], int] | None = None, **changes: Any
    ) -> None:
        self.rule = replace(adhoc_rule(limit), **changes)
        self.key = encode_key(self.rule.id, ("hot",))
        self.engine = Engine(max_keys=100)
        self.engine.set_rules({self.rule.id: EngineRule(limit)})
        self.recalled: list[tuple[str, list[bytes]]] = []
        self.freed: list[bytes] = []
        self.changed: list[bytes] = []
        self.counted: list[tuple[int, int]] = []
        """Charged units, or negative refunded ones, with the instants of their charges."""
        self.settled: list[tuple[str, int]] = []
        self.ledger: RefundLedger | None = None
        self.lender: Lender[str] = Lender(
            self.engine,
            lambda number: self.rule if number == self.rule.id else None,
            lambda client, keys: self.recalled.append((client, keys)),
            first_lease=7,
            on_freed=self.freed.extend,
            on_changed=self.changed.append,
            on_settled=self.settle,
            on_returned=self.return_units,
            process_of=lambda client: client.partition(":")[0],
            uptime=uptime,
        )
        self.lender.on_counted = lambda key, units, at, now: self.counted.append((units, at))

    def settle(self, client: str, key: bytes, units: int) -> None:
        self.settled.append((client, units))
        if self.ledger is not None:
            self.ledger.spent(key, units)

    def return_units(self, client: str, key: bytes, units: int) -> int:
        self.settled.append((client, -units))
        return units if self.ledger is None else self.ledger.returned(key, units)

    def lend(self, want: int = 1000, client: str = "one", now: int = 0, **ended: int) -> LeaseGrant:
        """Request a lease; `ended` has the units spent from leases by name, such as `lease_7`."""
        numbers = [int(name.removeprefix("lease_")) for name in ended]
        request = LeaseRequest(5, self.key, want, numbers, list(ended.values()))
        return self.lender.lend(client, request, now)

    def ask(self, op: Op, cost: int = 0, now: int = 0) -> Outcomes:
        return self.lender.decide(Batch(op, [self.key], [cost]), now)

    def used(self, now: int = 0) -> int:
        return self.engine.used(self.key, now)


def test_a_lease_has_half_of_the_rest_divided_by_the_borrowers() -> None:
    w = Lending()

    first, second = w.lend(), w.lend(client="other")

    assert first == LeaseGrant(5, 7, 500, NS_PER_SECOND, 1000, 500, 0)
    assert (second.lease, second.units, second.remaining) == (8, 125, 375)
    assert w.lender.lent_units(w.key) == 625
    assert w.lender.lent_units(b"another key") == 0
    assert (len(w.lender), w.used()) == (2, 0)


def test_each_further_borrower_gets_a_smaller_share_in_whole_units() -> None:
    w = Lending(Limit.of_ns(10_001, 60 * NS_PER_SECOND))

    assert [w.lend(want=9999, client=client).units for client in "abc"] == [5000, 1250, 625]


@pytest.mark.parametrize(("lent_at_ms", "used"), [(58_900, 0), (59_500, 100)])
def test_a_lease_is_charged_in_the_window_in_which_it_ended(lent_at_ms: int, used: int) -> None:
    w = Lending()
    w.lend(want=100, now=lent_at_ms * 10**6)

    w.lender.expire(61 * NS_PER_SECOND)

    assert w.used(61 * NS_PER_SECOND) == used


@pytest.mark.parametrize(("left", "units"), [(127, 0), (128, 64), (200, 100)])
def test_a_lease_has_at_least_64_units(left: int, units: int) -> None:
    w = Lending()
    w.ask(Op.CHECK, 1000 - left)

    grant = w.lend()

    assert grant.units == units
    assert grant.for_ns == (NS_PER_SECOND if units else NS_PER_SECOND // 10)


def test_a_client_gets_no_more_than_it_wants() -> None:
    w = Lending()

    assert (w.lend(want=64).units, w.lend(want=63).units, w.lend(want=0).units) == (64, 0, 0)


def test_a_client_has_at_most_three_leases_of_a_key() -> None:
    w = Lending()

    assert [w.lend(want=64).units for _ in range(4)] == [64, 64, 64, 0]
    assert w.lend(want=64, client="other").units == 64


@pytest.mark.parametrize(
    ("period_ns", "for_ns"),
    [
        (10**8, 20_000_000),
        (10**9, 50_000_000),
        (10 * 10**9, 500_000_000),
        (60 * 10**9, 10**9),
    ],
)
def test_a_lease_lasts_a_twentieth_of_the_period_from_20_ms_to_a_second(
    period_ns: int, for_ns: int
) -> None:
    assert Lending(Limit.of_ns(1000, period_ns, Algorithm.FIXED_WINDOW)).lend().for_ns == for_ns


@pytest.mark.parametrize(
    ("limit", "changes"),
    [
        (Limit.of_ns(127, NS_PER_SECOND), {}),
        (Limit.of_ns(1000, NS_PER_SECOND, Algorithm.CONCURRENCY), {}),
        (Limit(1000, 1.0, soft=0.1), {}),
        (LIMIT, {"shadow": True}),
        (LIMIT, {"quota": True}),
        (LIMIT, {"leases": False}),
        (LIMIT, {"scope": "global"}),
        (LIMIT, {"limit": None}),
    ],
)
def test_units_that_are_counted_for_each_check_are_not_lent(
    limit: Limit, changes: dict[str, Any]
) -> None:
    grant = Lending(limit, **changes).lend()

    assert (grant.units, grant.for_ns) == (0, 60 * NS_PER_SECOND)


def test_the_smallest_limit_that_is_lent_has_128_units() -> None:
    assert Lending(Limit.of_ns(128, NS_PER_SECOND)).lend().units == 64


def test_a_key_of_another_owner_or_an_unknown_rule_is_not_lent() -> None:
    w = Lending()
    unknown = LeaseRequest(5, b"unknown.k", 1000, [], [])

    elsewhere = w.lender.lend("one", LeaseRequest(5, w.key, 1000, [], []), 0, is_ours=False)

    assert (elsewhere.units, elsewhere.for_ns) == (0, NS_PER_SECOND // 10)
    assert w.lender.lend("one", unknown, 0).for_ns == 60 * NS_PER_SECOND


def test_a_client_is_charged_what_it_spent_of_its_own_leases() -> None:
    w = Lending()
    for client in ("one", "one", "other"):
        w.lend(want=100, client=client)

    w.lend(want=0, lease_7=30, lease_8=101, lease_9=100)

    assert w.settled == [("one", 30), ("one", 100)]
    assert (w.used(), w.lender.lent_units(w.key)) == (130, 100)
    assert w.freed == [w.key]
    assert len(w.changed) == 5


def test_a_lease_without_a_report_is_charged_at_its_end() -> None:
    w = Lending()
    w.lend(want=100)

    w.lender.expire(NS_PER_SECOND - 1)
    assert w.used() == 0
    w.lender.expire(NS_PER_SECOND)

    assert (w.used(NS_PER_SECOND), len(w.lender)) == (100, 0)
    assert w.freed == []
    w.lend(want=0, lease_7=50, now=NS_PER_SECOND)
    assert w.used(NS_PER_SECOND) == 50


def test_lent_units_are_not_shown_as_remaining_and_a_reset_recalls_them() -> None:
    w = Lending()
    w.lend(want=400)
    w.ask(Op.CHECK, 500)

    assert w.ask(Op.REFUND, 100).remaining == [200]
    w.engine.charge([w.key], [400], [0], 0)
    assert w.ask(Op.REFUND, 1).remaining == [0]
    assert w.recalled == []
    w.ask(Op.RESET)
    assert w.recalled == [("one", [w.key])]


def test_lent_units_of_one_key_do_not_change_the_remaining_units_of_another() -> None:
    w = Lending()
    w.lend(100)

    outcomes = w.lender.decide(Batch(Op.REFUND, [w.key, OTHER], [0, 0]), 0)

    assert outcomes.remaining == [900, 1000]


def test_no_units_are_lent_until_all_recalled_leases_have_ended() -> None:
    w = Lending()
    w.lend(want=100)
    w.lend(want=100, client="other")

    w.lender.recall_all()
    w.lender.recall([w.key])

    assert w.recalled == [("one", [w.key]), ("other", [w.key])]
    assert w.lend(want=100, lease_7=0).units == 0
    assert w.lend(want=100, client="other", lease_8=0).units == 100


def test_withheld_keys_are_recalled_and_not_lent_until_the_block_ends() -> None:
    w = Lending()
    w.lend(want=100)
    w.lend(want=100, client="other")
    returned: list[bytes] = []

    with w.lender.withheld([w.key], returned.append), w.lender.withheld([w.key], lambda _: None):
        assert w.recalled == [("one", [w.key]), ("other", [w.key])]
        assert w.lend(want=100, lease_7=0).units == 0
        assert returned == []
        assert w.lend(want=100, client="other", lease_8=0).units == 0
        assert returned == [w.key]

    assert w.lend(want=100).units == 100


def test_the_keys_with_open_leases_and_their_end_are_known() -> None:
    w = Lending()
    assert (w.lender.lent_keys([w.key], 0), w.lender.time_left([w.key], 0)) == ([], 0)
    w.lend(want=100)
    w.lend(want=100, now=5)

    assert w.lender.lent_keys([OTHER, w.key, w.key], NS_PER_SECOND + 4) == [w.key]
    assert w.lender.time_left([w.key], 7) == NS_PER_SECOND - 2
    assert w.lender.time_left([w.key], NS_PER_SECOND + 6) == 0
    assert w.lender.lent_keys([w.key], NS_PER_SECOND + 5) == []


@pytest.mark.parametrize(
    ("client", "lease", "late_s", "used"),
    [
        pytest.param("one", 7, 0, 30, id="same connection"),
        pytest.param("one:again", 7, 29, 30, id="new connection"),
        pytest.param("one:again", 7, 31, 100, id="too late"),
        pytest.param("two", 7, 1, 100, id="other process"),
        pytest.param("one", 8, 1, 100, id="unknown lease"),
    ],
)
def test_a_late_report_refunds_the_unspent_units_of_a_lease(
    client: str, lease: int, late_s: int, used: int
) -> None:
    w = Lending()
    w.lend(want=100)
    now = (1 + late_s) * NS_PER_SECOND
    assert w.lender.lent_keys([w.key], NS_PER_SECOND) == []
    w.changed.clear()

    for _ in range(2):
        w.lend(want=0, client=client, now=now, **{f"lease_{lease}": 30})

    is_refunded = used == 30
    assert w.used(now) == used
    assert w.settled == [("one", 100)] + [("one", -70)] * is_refunded
    assert w.counted == [(100, NS_PER_SECOND)] + [(-70, NS_PER_SECOND)] * is_refunded
    assert w.changed == [w.key] * is_refunded
    assert w.freed == [w.key] * is_refunded


def test_a_late_report_refunds_no_units_of_the_next_window() -> None:
    w = Lending()
    start = LIMIT.period_ns - 2 * NS_PER_SECOND
    w.lend(want=100, now=start)
    assert w.lender.lent_keys([w.key], start + NS_PER_SECOND) == []
    now = LIMIT.period_ns + NS_PER_SECOND
    w.engine.charge([w.key], [80], [0], now)

    w.lend(want=0, now=now, lease_7=30)

    assert w.used(now) == 80
    assert w.counted == [(100, start + NS_PER_SECOND), (0, start + NS_PER_SECOND)]


def test_a_new_connection_reports_the_open_leases_of_its_process() -> None:
    w = Lending()
    w.lend(want=100)
    w.lend(want=0, client="one:again", lease_7=30)

    assert (w.used(), len(w.lender)) == (30, 0)


@pytest.mark.parametrize(("client", "used"), [("one:again", 30), ("two", 200)])
@pytest.mark.parametrize("late_s", [0, 5])
def test_an_unknown_lease_of_a_process_has_no_spent_units(
    client: str, used: int, late_s: int
) -> None:
    w = Lending()
    w.lend(want=100)
    w.lend(want=100)
    now = late_s * NS_PER_SECOND

    w.lend(want=0, client=client, now=now, **{"lease_7": 30, f"lease_{UNKNOWN_LEASE}": 0})
    w.lender.expire(now + NS_PER_SECOND)

    assert w.used(now + NS_PER_SECOND) == used
    assert len(w.lender) == 0


def test_a_late_report_after_a_reset_refunds_nothing() -> None:
    w = Lending()
    w.lend(want=100)
    w.lender.expire(NS_PER_SECOND)
    w.ask(Op.RESET, now=2 * NS_PER_SECOND)
    w.ask(Op.CHECK, 50, now=2 * NS_PER_SECOND)

    w.lend(want=0, now=3 * NS_PER_SECOND, lease_7=30)

    assert w.used(3 * NS_PER_SECOND) == 50


def test_leases_without_a_report_are_forgotten_after_30_s() -> None:
    w = Lending()
    w.lend(want=100)
    for second in (1, 32):
        w.lender.expire(second * NS_PER_SECOND)

    assert (w.lender._unreported, w.lender._unreported_of_key) == ({}, {})


def test_a_late_report_of_a_lease_in_an_ended_window_refunds_nothing() -> None:
    w = Lending()
    w.lend(want=100, now=58 * NS_PER_SECOND)
    w.lender.expire(59 * NS_PER_SECOND)
    later = 62 * NS_PER_SECOND
    w.lend(want=0, now=later, lease_7=30)

    assert w.used(later) == 0


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_jump_of_the_clock_does_not_change_when_a_lease_ends(jump_s: int) -> None:
    passed = 0
    w = Lending(uptime=lambda: passed)
    before = 7200 * NS_PER_SECOND
    after = before + jump_s * NS_PER_SECOND
    w.lend(want=100, now=before)

    passed = NS_PER_SECOND - 1
    assert w.lender.lent_keys([w.key], after) == [w.key]
    assert w.lender.time_left([w.key], after) == 1
    passed = NS_PER_SECOND
    assert w.lender.lent_keys([w.key], after) == []
    assert w.used(after) == 100


def test_the_age_of_units_of_an_expired_lease_does_not_contain_a_jump_of_the_clock() -> None:
    passed = 0
    w = Lending(uptime=lambda: passed)
    w.lend(want=100, now=0)
    passed = NS_PER_SECOND

    after = 3601 * NS_PER_SECOND  # A second after the start of a window.
    w.lender.expire(after)

    assert w.used(after) == 100


def test_lent_units_of_a_transferred_key_are_charged() -> None:
    w = Lending()
    w.lend(want=100)

    w.lender.charge_transferred([w.key], 0)

    assert (w.used(), len(w.lender), w.lender.lent_units(w.key)) == (100, 0, 0)
    assert w.recalled == [("one", [w.key])]


def test_the_first_denial_of_a_key_recalls_exactly_its_leases() -> None:
    engine = Engine(max_keys=100)
    engine.set_rules({RULE.id: EngineRule(LIMIT)})
    recalled: list[tuple[str, list[bytes]]] = []
    lender: Lender[str] = Lender(
        engine,
        lambda number: RULE if number == RULE.id else None,
        lambda client, keys: recalled.append((client, keys)),
        first_lease=1,
    )
    for client, key in (("one", KEY), ("two", KEY), ("one", OTHER)):
        assert lender.lend(client, LeaseRequest(1, key, 100, [], []), 0).units

    allowed = lender.decide(Batch(Op.CHECK, [KEY], [800]), 0)
    before = list(recalled)
    denied = lender.decide(Batch(Op.CHECK, [KEY], [1]), 0)
    lender.decide(Batch(Op.CHECK, [KEY], [1]), 0)

    assert (allowed.codes, denied.codes) == ([Code.ALLOWED], [Code.DENIED])
    assert before == []
    assert recalled == [("one", [KEY]), ("two", [KEY])]


@pytest.mark.parametrize(
    ("refunded", "spent", "used"), [(200, 0, 400), (30, 30, 400), (0, 50, 450)]
)
def test_a_late_report_refunds_no_units_that_the_client_has_refunded_already(
    refunded: int, spent: int, used: int
) -> None:
    w, now = Lending(), 2 * NS_PER_SECOND
    w.ledger = RefundLedger(lambda: now, lambda key: LIMIT)
    w.ask(Op.CHECK, 400)
    w.lend(want=200)
    w.lender.expire(now)
    refund = Batch(Op.REFUND, [w.key], [refunded])
    assert w.ledger.bound(refund) == 0
    w.lender.decide(refund, now)

    w.lend(want=0, now=now, lease_7=spent)

    assert w.used(now) == used


def test_a_late_report_refunds_no_units_of_a_lease_that_ended_when_its_key_was_reset() -> None:
    w, now = Lending(), 2 * NS_PER_SECOND
    w.lend(want=200)
    w.ask(Op.RESET, now=now)
    w.ask(Op.CHECK, 300, now=now)

    w.lend(want=0, now=now, lease_7=0)

    assert w.used(now) == 300
