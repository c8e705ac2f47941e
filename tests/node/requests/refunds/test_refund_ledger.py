"""Refund ledger: the charges of each token, which limit its refunds."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from node.requests.refunds import recent_charges, refund_ledger
from node.requests.refunds.refund_ledger import RefundLedger, charge_lifetime_ns
from ringfence.limiter import NS_PER_SECOND, Algorithm, Code, Limit, Outcomes
from ringfence.limiter.compiled import why_not_compiled
from ringfence.wire import MAX_COST, Batch, Op, Results, Source

LIMIT = Limit.of_ns(100, 60 * NS_PER_SECOND)
WEIGHS_NS = 120 * NS_PER_SECOND
KEYS = [bytes([number]) * 8 for number in range(5)]
OF_ONE_RULE = [KEYS[0] + bytes([number]) for number in range(12)]


def limit_of(key: bytes) -> Limit | None:
    """Return the limit of a key's rule."""
    return None if key == UNKNOWN else LIMIT


UNKNOWN = b"unknown." + b"k"
CARRIED = [Limit.of_ns(100, 7 * NS_PER_SECOND), Limit.of_ns(5, 90 * NS_PER_SECOND)]


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "plain"])
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """The charges as they were built, and their Python source."""
    names = ("Charges", "add_batch", "add_units")
    plain = {} if request.param else {name: getattr(recent_charges, name) for name in names}
    with patch.multiple(refund_ledger, **plain) if plain else nullcontext():
        yield


class Row(NamedTuple):
    """One check of a batch, and its result."""

    key: bytes
    cost: int = 2
    code: Code = Code.ALLOWED
    source: Source = Source.OWNER
    slot_id: int = 0
    limit: int = 0
    """Number of the carried limit; 0 for the limit of the rule."""


class World:
    """Ledger of at most three keys by default, with a clock."""

    def __init__(self, most_keys: int = 3) -> None:
        self.now = 1000 * WEIGHS_NS
        self.ledger = RefundLedger(lambda: self.now, limit_of, most_keys=most_keys)

    def charge(
        self,
        *keys: bytes,
        cost: int = 1,
        code: Code = Code.ALLOWED,
        source: Source = Source.OWNER,
        slot_id: int = 0,
    ) -> None:
        self.charge_rows([Row(key, cost, code, source, slot_id) for key in keys])

    def charge_rows(self, rows: Sequence[Row]) -> None:
        zeros = [0] * len(rows)
        codes, slot_ids = [row.code.value for row in rows], [row.slot_id for row in rows]
        outcomes = Outcomes(codes, zeros, zeros, zeros, zeros, zeros, slot_ids)
        batch = Batch(Op.CHECK, [row.key for row in rows], [row.cost for row in rows])
        if any(row.limit for row in rows):
            batch.limits, batch.which = CARRIED, [row.limit for row in rows]
        results = Results(outcomes, [row.source for row in rows])
        self.ledger.charged(batch, results, self.now)

    def renew(self, key: bytes, slot_id: int) -> None:
        outcomes = Outcomes([Code.ALLOWED.value], *[[0] for _ in range(5)], [slot_id])
        self.ledger.renewed(Batch(Op.RENEW, [key], [1]), Results(outcomes, [Source.OWNER]))

    def refund(self, key: bytes, cost: int, slot_id: int = 0, limit: int = 0) -> Batch:
        batch = Batch(Op.REFUND, [key], [cost], slot_ids=[slot_id])
        if limit:
            batch.limits, batch.which = CARRIED, [limit]
        cut = self.ledger.bound(batch)
        assert batch.costs[0] + cut == cost
        return batch


def test_the_compiled_form_is_built_where_the_limiter_is() -> None:
    if why_not_compiled() is None:
        compiled = import_module("node.requests.refunds._recent_charges")
        assert compiled.add_batch is not recent_charges.add_batch


def test_a_charge_is_refunded_once() -> None:
    w = World()
    w.charge(KEYS[0], KEYS[0], cost=3)

    assert [w.refund(KEYS[0], 4).costs, w.refund(KEYS[0], 4).costs] == [[4], [2]]
    assert w.refund(KEYS[1], 1).costs == [0]


@pytest.mark.parametrize(
    ("code", "source"),
    [
        (Code.DENIED, Source.OWNER),
        (Code.UNCHARGED, Source.OWNER),
        (Code.ALLOWED, Source.POLICY),
        (Code.ALLOWED, Source.LOCAL),
    ],
)
def test_a_check_that_no_member_charged_is_not_refunded(code: Code, source: Source) -> None:
    w = World()
    w.charge(KEYS[0], code=code, source=source)

    assert w.refund(KEYS[0], 1).costs == [0]


def test_charges_are_dropped_when_they_have_no_effect() -> None:
    w = World()
    w.charge(KEYS[0], KEYS[1], cost=5)
    w.now += WEIGHS_NS
    w.charge(KEYS[1], cost=2)
    still = w.refund(KEYS[1], 9)
    w.now += WEIGHS_NS

    assert (still.costs, w.refund(KEYS[0], 5).costs) == ([7], [0])


def test_a_refund_is_no_younger_than_the_last_charge() -> None:
    w = World()
    w.charge(KEYS[0])
    w.now += 7

    assert w.refund(KEYS[0], 1).ages_ns == [7]


def test_a_refund_from_a_log_is_old_enough_for_its_charges() -> None:
    period_ns, allowance_ns = 60 * NS_PER_SECOND, 50_000_000
    log = Limit.of_ns(100, period_ns, Algorithm.SLIDING_WINDOW_LOG)
    w = World()
    w.ledger = RefundLedger(lambda: w.now, lambda key: log)
    ages: list[int] = []

    def refund(cost: int) -> None:
        ages.extend(w.refund(KEYS[0], cost).ages_ns)

    w.charge(KEYS[0], cost=2)
    w.now += period_ns // 2
    w.charge(KEYS[0], cost=3)
    w.now += 7
    refund(3)  # only the last charge
    w.now += NS_PER_SECOND
    refund(1)  # also a part of the charge before it
    w.now += period_ns - NS_PER_SECOND - 8
    refund(1)  # the last charge may expire before the refund arrives
    w.charge(KEYS[0], cost=2)
    w.now += period_ns - NS_PER_SECOND
    w.charge(KEYS[0], cost=3)
    w.now += 2 * NS_PER_SECOND
    refund(4)  # not more than a period, while the last charge counts

    assert ages == [
        7 + allowance_ns,
        period_ns // 2 + 7 + NS_PER_SECOND + allowance_ns,
        period_ns - 1 + allowance_ns,
        period_ns - 1,
    ]


ALLOWANCE_NS = 50_000_000
LOG = Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW_LOG)


def log_world(starts_at_s: int = 0) -> World:
    """Return a ledger of keys with logs. At 0 s, the span of time of their charges changes."""
    w = World(100)
    w.ledger = RefundLedger(lambda: w.now, lambda key: LOG)
    w.now += starts_at_s * NS_PER_SECOND
    return w


def age_of_refund(w: World, key: bytes, cost: int) -> float:
    """Return the age of a refund in seconds, without the allowance for a slower way."""
    refund = w.refund(key, cost)
    assert refund.costs == [cost]
    [age_ns] = refund.ages_ns
    return (age_ns - ALLOWANCE_NS) / NS_PER_SECOND


@pytest.mark.parametrize("starts_at_s", [0, -5])
@pytest.mark.parametrize("way", ["one key", "many keys", "some new keys", "lease"])
def test_a_refund_of_several_charges_of_a_log_is_as_old_as_the_first(
    way: str, starts_at_s: int
) -> None:
    w = log_world(starts_at_s)
    keys = OF_ONE_RULE[: 1 if way in ("one key", "lease") else 5]

    def charge(cost: int) -> None:
        if way == "lease":
            w.ledger.spent(keys[0], cost)
        else:
            w.charge(*keys, cost=cost)
        w.now += 10 * NS_PER_SECOND

    if way == "some new keys":
        w.charge(*OF_ONE_RULE[1:3], cost=2)
        w.charge(*OF_ONE_RULE[5:], *keys[:1], *keys[3:], cost=2)
        w.now += 10 * NS_PER_SECOND
    else:
        charge(2)
    charge(3)
    charge(1)

    assert age_of_refund(w, keys[0], 1) == 10
    assert age_of_refund(w, keys[0], 4) == 30
    assert [age_of_refund(w, key, 6) for key in keys[1:]] == [30] * (len(keys) - 1)


def test_after_a_refund_of_older_charges_no_part_of_the_last_charge_is_left() -> None:
    w = log_world()
    for _ in range(2):
        w.charge(KEYS[0], cost=2)
        w.now += 10 * NS_PER_SECOND

    assert age_of_refund(w, KEYS[0], 3) == 20
    assert age_of_refund(w, KEYS[0], 1) == 20


def test_a_partial_refund_leaves_the_rest_of_the_last_charge() -> None:
    w = log_world()
    for cost in (2, 5):
        w.charge(KEYS[0], cost=cost)
        w.now += 10 * NS_PER_SECOND

    ages = [age_of_refund(w, KEYS[0], cost) for cost in (1, 3, 1, 1, 1)]

    assert ages == [10, 10, 10, 20, 20]


@pytest.mark.parametrize("starts_at_s", [0, -15])
def test_refunded_charges_make_later_refunds_no_older(starts_at_s: int) -> None:
    w = log_world(starts_at_s)
    w.charge(KEYS[0], cost=2)
    w.refund(KEYS[0], 2)
    for _ in range(2):
        w.now += 10 * NS_PER_SECOND
        w.charge(KEYS[0], cost=2)

    assert age_of_refund(w, KEYS[0], 4) == 10


@pytest.mark.parametrize("cost", range(1, 8))
def test_the_rest_of_a_charge_can_be_refunded_later(cost: int) -> None:
    w = World()
    w.charge(KEYS[0], cost=7)

    assert [w.refund(KEYS[0], each).costs for each in (cost, 9, 9)] == [[cost], [7 - cost], [0]]


def test_a_refund_without_slots_is_of_charges_without_slots() -> None:
    w = World()
    w.charge(KEYS[0], cost=2)
    w.now += 7
    batch = Batch(Op.REFUND, [KEYS[0], KEYS[1]], [1, 1])

    assert w.ledger.bound(batch) == 1

    assert (batch.costs, batch.ages_ns) == ([1, 0], [7, 0])


def test_a_refund_of_nothing_has_no_age() -> None:
    w = World()
    w.charge(KEYS[0])
    w.now += 7
    batch = Batch(Op.REFUND, [KEYS[1]], [1])

    assert w.ledger.bound(batch) == 1

    assert (batch.costs, batch.ages_ns) == ([0], [])


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("charged_limit", [1, 2])
def test_a_charge_lasts_as_long_as_its_carried_limit_counts_it(
    limit: int, charged_limit: int
) -> None:
    w = World()
    w.charge_rows([Row(KEYS[0], cost=3, limit=charged_limit)])
    spans = [w.now // (2 * CARRIED[each - 1].period_ns) for each in (charged_limit, limit)]
    assert (spans[0] == spans[1]) is (limit == charged_limit)

    assert w.refund(KEYS[0], 3, limit=limit).costs == [3 if limit == charged_limit else 0]


@pytest.mark.parametrize("most_keys", [2, 3, 10])
def test_half_as_many_keys_more_are_kept_before_the_oldest_are_dropped(most_keys: int) -> None:
    w = World(most_keys)
    sizes = []
    for number in range(3 * most_keys):
        w.charge(bytes([number]) * 8)
        sizes.append(len(w.ledger))

    assert max(sizes) == most_keys + most_keys // 2
    assert sizes[most_keys + most_keys // 2] == most_keys


def test_by_default_16384_keys_are_always_kept() -> None:
    ledger = RefundLedger(lambda: 10**18, limit_of)
    for number in range(24_577):
        assert len(ledger) == number
        ledger.spent(KEYS[0] + number.to_bytes(2, "big"), 1)

    assert len(ledger) == 16_384


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (Limit.of_ns(100, 60 * NS_PER_SECOND), 120),
        (Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.TOKEN_BUCKET), 120),
        (Limit(100, 60, Algorithm.TOKEN_BUCKET, 200), 120),
        (Limit(100, 60, Algorithm.TOKEN_BUCKET, 201), 120.6),
        (Limit(100, 60, Algorithm.TOKEN_BUCKET, 1000), 600),
        (Limit(1, 60, Algorithm.TOKEN_BUCKET, 10), 600),
        (Limit(0, 60), 120),
    ],
)
def test_charges_of_a_limit_last_until_its_counters_are_empty(limit: Limit, seconds: float) -> None:
    assert charge_lifetime_ns(limit) == seconds * NS_PER_SECOND


def test_a_refund_of_a_charge_that_has_left_the_log_is_at_least_as_old_as_the_charge() -> None:
    log = Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW_LOG)
    w = World()
    w.ledger = RefundLedger(lambda: w.now, lambda key: log)
    w.charge(KEYS[0], cost=2)
    w.now += 60 * NS_PER_SECOND

    assert w.refund(KEYS[0], 2).ages_ns == [60 * NS_PER_SECOND + ALLOWANCE_NS]


def test_a_refund_must_name_the_lease_of_its_charge() -> None:
    w = World()
    w.charge(KEYS[0], cost=2, slot_id=9)

    assert [w.refund(KEYS[0], 2, slot_id).costs for slot_id in (8, 0, 9)] == [[0], [0], [2]]


def test_renewed_slots_can_be_released_also_after_a_part_of_them() -> None:
    w = World()
    w.charge(KEYS[0], cost=3, slot_id=9)
    for _ in range(4):
        w.now += WEIGHS_NS // 2
        w.renew(KEYS[0], 9)
    assert w.refund(KEYS[0], 1, slot_id=9).costs == [1]
    for _ in range(6):
        w.now += WEIGHS_NS // 2
        w.renew(KEYS[0], 9)

    assert w.refund(KEYS[0], 3, slot_id=9).costs == [2]


def test_slots_that_were_not_renewed_for_two_spans_cannot_be_released() -> None:
    w = World()
    w.charge(KEYS[0], cost=3, slot_id=9)
    w.now += 2 * WEIGHS_NS
    w.renew(KEYS[0], 9)
    w.renew(KEYS[1], 8)

    assert w.refund(KEYS[0], 3, slot_id=9).costs == [0]
    assert len(w.ledger) == 1


def test_renewed_slots_are_kept_longer_than_older_charges() -> None:
    w = World()
    w.charge(KEYS[0], cost=1, slot_id=9)
    w.charge(*KEYS[1:3])
    w.now += WEIGHS_NS
    w.renew(KEYS[0], 9)
    w.charge(*KEYS[3:])

    assert w.refund(KEYS[0], 1, slot_id=9).costs == [1]
    assert w.refund(KEYS[1], 1).costs == [0]


def test_above_the_bound_the_key_charged_first_is_dropped() -> None:
    w = World()
    w.charge(*KEYS)

    assert len(w.ledger) == 3
    assert [w.refund(key, 1).costs for key in KEYS] == [[0], [0], [1], [1], [1]]


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_charged_like_its_rows_one_by_one(seed: int) -> None:
    random = Random(seed)
    together, apart = World(100), World(100)
    for _ in range(30):
        keys = random.choices(OF_ONE_RULE, k=random.randint(1, 8))
        cost, code = random.randint(0, 3), random.choice((Code.ALLOWED, Code.ALLOWED, Code.DENIED))
        together.charge(*keys, cost=cost, code=code)
        for key in keys:
            apart.charge(key, cost=cost, code=code)
        together.now = apart.now = together.now + random.choice((1, WEIGHS_NS))
        if not random.randrange(3):
            key, cost = random.choice(OF_ONE_RULE), random.randint(1, 9)
            refunds = [world.refund(key, cost) for world in (together, apart)]
            assert refunds[0] == refunds[1]

    refunds = [[world.refund(key, 99) for key in OF_ONE_RULE] for world in (together, apart)]
    assert refunds[0] == refunds[1]


@pytest.mark.parametrize("seed", range(60))
def test_a_batch_of_different_rows_is_charged_like_its_rows_one_by_one(seed: int) -> None:
    random = Random(seed)
    together, apart = World(1000), World(1000)
    keys = [KEYS[0] + bytes([number]) for number in range(60)]
    different: list[dict[str, Any]] = [
        {"key": KEYS[1]},
        {"key": UNKNOWN},
        {"cost": 0},
        {"cost": 5},
        {"code": Code.DENIED},
        {"code": Code.OVER_SOFT},
        {"source": Source.POLICY},
        {"source": Source.STANDBY},
        {"slot_id": 9},
        {"limit": 1},
        {"limit": 2},
    ]
    for _ in range(20):
        rows = [Row(key) for key in random.choices(keys, k=random.randint(1, 8))]
        for _ in range(random.randint(0, 2)):
            at = random.randrange(len(rows))
            rows[at] = rows[at]._replace(**random.choice(different))
        together.charge_rows(rows)
        for row in rows:
            apart.charge_rows([row])
        together.now = apart.now = together.now + random.choice((1, 1, WEIGHS_NS // 9))

    for key in (*keys, KEYS[1], UNKNOWN):
        for slot_id, limit in ((0, 0), (9, 0), (0, 1), (0, 2)):
            refunds = [world.refund(key, 9, slot_id, limit) for world in (together, apart)]
            assert refunds[0] == refunds[1]


def test_a_batch_above_the_bound_keeps_its_newest_keys() -> None:
    w = World()
    w.charge(*OF_ONE_RULE)

    assert len(w.ledger) == 3
    assert [w.refund(key, 1).costs for key in OF_ONE_RULE[-4:]] == [[0], [1], [1], [1]]


def test_leases_fill_the_ledger_only_to_its_bound() -> None:
    w = World()
    for key in KEYS:
        w.ledger.spent(key, 1)

    assert len(w.ledger) == 3


@pytest.mark.parametrize("cost", [MAX_COST, 1])
def test_units_above_62_bits_are_not_counted(cost: int) -> None:
    w = World()
    for _ in range(3):
        w.charge(*[KEYS[0]] * 512, cost=MAX_COST)

    batch = Batch(Op.REFUND, [KEYS[0]], [cost])

    assert w.ledger.bound(batch) == 0
    assert batch.costs == [cost]


def test_the_limit_of_a_rule_is_looked_up_once_for_each_batch() -> None:
    looked_up = []

    def find(key: bytes) -> Limit:
        looked_up.append(key[:8])
        return LIMIT

    w = World(100)
    w.ledger = RefundLedger(lambda: w.now, find)
    w.charge(*[KEYS[row % 2] + bytes([row]) for row in range(20)])

    assert looked_up == KEYS[:2]
    assert [w.refund(KEYS[row % 2] + bytes([row]), 2).costs for row in (18, 19)] == [[1], [1]]
