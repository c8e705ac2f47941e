from node.requests.rules_in_force import RulesInForce
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Rules, decode

OLD = load_text(
    "domain: api\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}\n"
).rules
NEW = load_text(
    "domain: api\ndescriptors:\n  - {key: team, rate_limit: {unit: day, requests_per_unit: 5}}\n"
).rules


def test_a_change_raises_the_version_for_files_of_any_age() -> None:
    rules = RulesInForce(OLD)
    before = decode(rules.packed(1))

    rules.change(NEW)
    after = decode(rules.packed(2))

    assert isinstance(before, Rules)
    assert isinstance(after, Rules)
    assert after.version == before.version + 1
    assert rules.hash == NEW.content_hash() != OLD.content_hash()
    rules.change(OLD)
    again = decode(rules.packed(3))
    assert isinstance(again, Rules)
    assert again.version == before.version + 2


def test_a_key_of_a_removed_rule_still_has_its_name() -> None:
    [old] = OLD.rules()
    key = encode_key(old.id, ("ann",))
    rules = RulesInForce(OLD)

    assert rules.rule_of_key(key) == (old, True)
    rules.change(NEW)

    assert rules.rule_of_key(key) == (old, False)
    assert rules.limit_of(key) is None
    assert not rules.counts_by(old.id)
    assert rules.period_of(key) == 86_400 * 10**9
