"""Changed, received and lost counts of global keys, without any other part of a node."""

from gossip.cross_dc.count_dissemination import CountDissemination
from hashring import shard_of
from node.cross_dc.global_keys import GlobalKeys
from ringfence.limiter import Engine, EngineRule
from ringfence.peering.engine_choice import decide_batch
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
  - key: account
    rate_limit:
      unit: day
      requests_per_unit: 1
      algorithm: fixed_window
      align: calendar
      timezone: UTC
      scope: global
""").rules
GLOBAL, LOCAL, CALENDAR = RULES.rules()
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
        self.keys.to_send["us"] = CountDissemination()

    def check(self, *keys: bytes) -> None:
        batch = Batch(Op.CHECK, [*keys], [1] * len(keys))
        outcomes = decide_batch(self.engine, batch, self.now)
        self.keys.on_decided(batch, Results(outcomes, [Source.OWNER] * len(batch)))

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
    host.keys.to_send["us"] = CountDissemination()

    host.check(KEY)

    assert host.changed == 0


def test_keys_from_another_member_are_sent_again_with_their_remote_counts() -> None:
    host = Host()
    host.engine.merge_remote("us", [KEY], [[NOW // DAY, 3]], NOW)

    host.keys.on_arrived([KEY, LOCAL_KEY])

    assert host.changed == 1
    assert host.keys.received == {"us": {shard_of(KEY): {KEY: [NOW // DAY, 3]}}}


def test_received_counts_are_forgotten_when_their_windows_are_over() -> None:
    host = Host()
    host.keys.on_received("us", KEY, [NOW // DAY, 3])

    host.keys.forget_expired()
    assert host.keys.received["us"]

    host.now += 4 * DAY
    host.keys.forget_expired()
    assert host.keys.received == {"us": {}}


def test_received_counts_of_a_calendar_window_are_kept_for_two_periods() -> None:
    host = Host()
    key = encode_key(CALENDAR.id, ["x"])
    host.keys.on_received("us", key, [NOW // SECOND, 3])

    host.now += 2 * DAY
    host.keys.forget_expired()
    assert host.keys.received["us"]
    host.now += 1
    host.keys.forget_expired()

    assert host.keys.received == {"us": {}}
