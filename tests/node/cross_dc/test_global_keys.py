"""Changed, received and lost counts of global keys, without any other part of a node."""

from collections.abc import Sequence

import pytest

from gossip.cross_dc.count_dissemination import CountDissemination, KeyCounts
from hashring import shard_of
from node.cross_dc.global_keys import GlobalKeys
from ringfence.limiter import Code, Engine, EngineRule, Outcomes
from ringfence.peering.engine_choice import decide_batch
from ringfence.rules import Rule
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Batch, Op, Results, Source

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
NOW = 20_000 * DAY
RULES = load_text("""
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1, algorithm: fixed_window, scope: global}
  - key: address
    rate_limit: {unit: day, requests_per_unit: 1, algorithm: fixed_window}
  - key: fine
    rate_limit:
      unit: day
      requests_per_unit: 9
      algorithm: sliding_window
      slots: 4
      scope: global
  - key: account
    rate_limit:
      unit: day
      requests_per_unit: 1
      algorithm: fixed_window
      align: calendar
      timezone: UTC
      scope: global
""").rules
GLOBAL, LOCAL, FINE, CALENDAR = RULES.rules()
KEY, LOCAL_KEY = encode_key(GLOBAL.id, ["x"]), encode_key(LOCAL.id, ["x"])


class Host:
    """Global keys of a node with one other data center, `us`."""

    def __init__(self) -> None:
        self.now = NOW
        self.engine = Engine(max_keys=100)
        self.engine.set_rules(
            {
                rule.id: EngineRule(rule.limit, is_shared=rule is not LOCAL)
                for rule in RULES.rules()
                if rule.limit is not None
            }
        )
        self.keys = GlobalKeys(self.engine, lambda: self.now, lambda: self.now)
        self.keys.set_rules(RULES)
        self.keys.others = ["us"]
        self.keys.to_send["us"] = CountDissemination(shard_of)

    def check(self, *keys: bytes) -> None:
        batch = Batch(Op.CHECK, [*keys], [1] * len(keys))
        outcomes = decide_batch(self.engine, batch, self.now)
        self.keys.on_decided(batch, Results(outcomes, [Source.OWNER] * len(batch)))

    def forget_expired(self) -> None:
        for _ in self.keys.forget_expired():
            pass

    def received(self) -> dict[str, dict[bytes, tuple[int, ...]]]:
        return {
            name: {key: counts.get(key) for shard in counts.sums for key in counts.keys_of(shard)}
            for name, counts in self.keys.received.items()
        }

    @property
    def changed(self) -> int:
        return len(self.keys.to_send["us"])


def test_only_admitted_checks_of_global_rules_are_sent() -> None:
    host = Host()
    host.check(LOCAL_KEY)
    assert host.changed == 0

    host.check(KEY)
    assert host.changed == 1


def test_a_denied_check_is_not_sent() -> None:
    host = Host()
    host.check(KEY)
    host.keys.to_send["us"] = CountDissemination(shard_of)

    host.check(KEY)

    assert host.changed == 0


@pytest.mark.parametrize(
    ("op", "cost", "code", "is_sent"),
    [
        (Op.CHECK, 1, Code.ALLOWED, True),
        (Op.CHECK, 1, Code.OVER_SOFT, True),
        (Op.CHECK, 1, Code.UNCHARGED, False),
        (Op.CHECK, 0, Code.ALLOWED, False),
        (Op.CHARGE, 1, Code.ALLOWED, True),
        (Op.CHARGE, 1, Code.OVERDRAWN, True),
        (Op.CHARGE, 0, Code.ALLOWED, False),
        (Op.REFUND, 1, Code.ALLOWED, False),
        (Op.RESET, 1, Code.ALLOWED, False),
    ],
)
def test_counts_are_sent_when_they_have_risen(
    *, op: Op, cost: int, code: Code, is_sent: bool
) -> None:
    host = Host()
    columns = [[code.value, code.value], *[[0, 0] for _ in range(6)]]

    host.keys.on_decided(
        Batch(op, [LOCAL_KEY, KEY], [cost, cost]), Results(Outcomes(*columns), [Source.OWNER] * 2)
    )

    assert host.changed == is_sent


@pytest.mark.parametrize(
    ("numbers", "spent", "is_near"),
    [
        ("requests_per_unit: 100, burst: 10", 7, False),
        ("requests_per_unit: 100, burst: 10", 8, True),
        ("requests_per_unit: 10, burst: 1000", 799, False),
        ("requests_per_unit: 10, burst: 1000", 800, True),
        ("requests_per_unit: 100, soft: 50%", 119, False),
        ("requests_per_unit: 100, soft: 50%", 120, True),
    ],
)
def test_a_key_near_its_limit_is_examined_first(*, numbers: str, spent: int, is_near: bool) -> None:
    rules = load_text(f"""
domain: api
descriptors:
  - key: user
    rate_limit: {{unit: day, {numbers}, algorithm: token_bucket, scope: global}}
""").rules
    (rule,) = rules.rules()
    host, keys = Host(), [encode_key(rule.id, [name]) for name in ("other", "key")]
    assert rule.limit is not None
    host.engine.set_rules({rule.id: EngineRule(rule.limit, is_shared=True)})
    host.keys.set_rules(rules)

    batch = Batch(Op.CHECK, keys, [1, spent])
    outcomes = decide_batch(host.engine, batch, host.now)
    host.keys.on_decided(batch, Results(outcomes, [Source.OWNER] * 2))
    examined: list[bytes] = []

    def read(some: Sequence[bytes]) -> list[KeyCounts]:
        examined.extend(some)
        return [KeyCounts([], 0, 1)] * len(some)

    host.keys.to_send["us"].take_due(read, 2, 0)

    assert examined == (keys[::-1] if is_near else keys)


def test_counts_wait_for_each_other_data_center() -> None:
    host = Host()
    host.keys.to_send["ap"] = CountDissemination(shard_of)
    assert not host.keys.has_work

    host.check(KEY)

    assert [len(each) for each in host.keys.to_send.values()] == [1, 1]
    assert host.keys.has_work


def test_lost_counts_are_work_until_every_data_center_has_answered() -> None:
    host = Host()
    host.keys.others = ["ap", "us"]
    host.keys.on_started([3])
    for name in ("us", "ap"):
        assert host.keys.has_work
        host.keys.lost.on_answer(name, [3])

    assert not host.keys.has_work


def test_keys_from_another_member_are_sent_again_with_their_remote_counts() -> None:
    host = Host()
    host.engine.merge_remote("us", [KEY], [[NOW // DAY, 3]], NOW)

    host.keys.on_arrived([KEY, LOCAL_KEY])

    assert host.changed == 1
    assert host.received() == {"us": {KEY: (NOW // DAY, 3)}}


def test_received_counts_are_forgotten_when_their_windows_have_ended() -> None:
    host = Host()
    host.keys.on_received("us", KEY, [NOW // DAY, 3])

    host.forget_expired()
    assert host.received()["us"]

    host.now += 4 * DAY
    host.forget_expired()
    assert host.received() == {"us": {}}


@pytest.mark.parametrize(("rule", "slot", "kept_slots"), [(GLOBAL, DAY, 3), (FINE, DAY // 4, 6)])
def test_counts_are_kept_until_their_window_has_no_effect(
    rule: Rule, slot: int, kept_slots: int
) -> None:
    host = Host()
    key = encode_key(rule.id, ["x"])
    host.keys.on_received("us", key, [NOW // slot - 1, 2, NOW // slot, 3])
    host.keys.to_send["us"].on_acknowledged(key, [NOW // slot, 3])

    host.now += kept_slots * slot
    host.forget_expired()
    assert host.received()["us"]
    assert host.keys.to_send["us"].acknowledged.get(key)
    host.now += 1
    host.forget_expired()

    assert host.received() == {"us": {}}
    assert len(host.keys.to_send["us"].acknowledged) == 0


def test_counts_of_a_rule_that_has_ended_are_forgotten() -> None:
    host = Host()
    host.keys.on_received("us", KEY, [NOW // DAY, 3])
    host.keys.on_received("us", LOCAL_KEY, [NOW // DAY, 3])

    host.forget_expired()

    assert host.received() == {"us": {KEY: (NOW // DAY, 3)}}
    assert host.keys.limit_of(KEY) == GLOBAL.limit
    assert host.keys.limit_of(LOCAL_KEY) is None


def test_received_counts_of_a_calendar_window_are_kept_for_two_periods() -> None:
    host = Host()
    key = encode_key(CALENDAR.id, ["x"])
    host.keys.on_received("us", key, [NOW // SECOND, 3])

    host.now += 2 * DAY
    host.forget_expired()
    assert host.received()["us"]
    host.now += 1
    host.forget_expired()

    assert host.received() == {"us": {}}
