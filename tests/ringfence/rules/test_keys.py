from hypothesis import given
from hypothesis import strategies as st

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, Limit
from ringfence.rules.keys import MAX_KEY, adhoc_rule, decode_key, encode_key, override_id, rule_id

words = st.text(alphabet="ab_=\x00\xff\ud800é", max_size=6)
value_lists = st.lists(words, max_size=4)
paths = st.lists(st.tuples(words, st.none() | words), max_size=4).map(tuple)

HUNDRED_A_MINUTE = Limit.of_ns(100, 60 * NS_PER_SECOND)


@given(first=value_lists, second=value_lists)
def test_two_keys_of_a_rule_are_equal_only_when_their_values_are(first, second):
    assert (encode_key(7, first) == encode_key(7, second)) == (first == second)


@given(values=value_lists, first=st.integers(0, 2**64 - 1), second=st.integers(0, 2**64 - 1))
def test_keys_of_different_rules_differ_in_their_first_eight_bytes(values, first, second):
    assert encode_key(first, values)[:8] == first.to_bytes(8, "big")
    assert (encode_key(first, values) == encode_key(second, values)) == (first == second)


plain_lists = st.lists(st.text(alphabet="ab_=\x00\xff\u00e9", max_size=6), max_size=4)


@given(values=plain_lists, identity=st.integers(0, 2**64 - 1))
def test_decoding_a_key_returns_its_rule_and_its_values(values, identity):
    assert decode_key(encode_key(identity, values)) == (identity, tuple(values))


@given(values=value_lists, junk=st.binary(max_size=40))
def test_a_key_with_a_digest_still_yields_its_rule(values, junk):
    long = encode_key(7, [*values, "x" * 200])

    assert decode_key(long) == (7, None)
    identity, decoded = decode_key((7).to_bytes(8, "big") + junk)
    assert identity == 7
    assert decoded is None or all(text.encode() is not None for text in decoded)


@given(first=st.tuples(words, paths), second=st.tuples(words, paths))
def test_two_rule_paths_have_the_same_identity_only_when_they_are_equal(first, second):
    assert (rule_id(*first) == rule_id(*second)) == (first == second)


def test_moving_a_separator_between_key_and_value_changes_the_identity():
    assert rule_id("d", (("a_b", "c"),)) != rule_id("d", (("a", "b_c"),))
    assert rule_id("d", (("a", ""),)) != rule_id("d", (("a", None),))
    assert rule_id("d", (("a", None), ("b", None))) != rule_id("d", (("a", "b"),))


def test_long_values_near_the_bounds_have_distinct_keys():
    keys = {encode_key(1, ["x" * size]) for size in [*range(115, 125), *range(250, 260)]}

    assert len(keys) == 20
    assert encode_key(1, ["x" * 119])[8] == 119
    assert encode_key(1, ["x" * 120])[8:10] == b"\xff\xff"


@given(identity=st.integers(0, 2**64 - 1), values=st.lists(st.text(max_size=400), max_size=4))
def test_no_key_is_longer_than_the_bound_and_each_begins_with_its_rule(identity, values):
    key = encode_key(identity, values)

    assert len(key) <= MAX_KEY
    assert key[:8] == identity.to_bytes(8, "big")


def test_different_long_values_have_different_keys():
    path = "/a" * 500

    keys = {
        encode_key(7, [path]),
        encode_key(7, [path + "x"]),
        encode_key(7, [path[:-1], path[-1]]),
        encode_key(8, [path]),
    }

    assert len(keys) == 4


def test_an_identity_is_the_same_in_every_process_and_release():
    assert rule_id("test-domain", (("key1", "value1"), ("subkey1", None))) == 0x791AF3C8DB48AD30


def test_an_override_never_has_the_identity_of_a_rule():
    assert override_id("d", ["key"]) != rule_id("d", (("key", None),))
    assert override_id("d", ["a", "b"]) != override_id("d", ["a_b"])


def test_an_ad_hoc_limit_keeps_its_counters_when_only_its_amounts_change():
    rule = adhoc_rule(HUNDRED_A_MINUTE)

    assert rule.carried
    assert rule.limit == HUNDRED_A_MINUTE
    assert adhoc_rule(Limit.of_ns(200, 60 * NS_PER_SECOND)).id == rule.id
    assert adhoc_rule(Limit.of_ns(100, 60 * NS_PER_SECOND, soft_permille=100)).id == rule.id
    bucket = Limit.of_ns(5, NS_PER_SECOND, Algorithm.TOKEN_BUCKET, burst=20)
    assert (
        adhoc_rule(bucket).id
        == adhoc_rule(Limit.of_ns(9, NS_PER_SECOND, Algorithm.TOKEN_BUCKET)).id
    )


def test_ad_hoc_limits_of_different_shape_or_name_have_separate_counters():
    day = 86_400 * NS_PER_SECOND
    rules = [
        adhoc_rule(HUNDRED_A_MINUTE),
        adhoc_rule(HUNDRED_A_MINUTE, "uploads"),
        adhoc_rule(Limit.of_ns(100, 61 * NS_PER_SECOND)),
        adhoc_rule(Limit.of_ns(100, 60 * NS_PER_SECOND, slots=6)),
        adhoc_rule(Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW_LOG)),
        adhoc_rule(Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.LEAKY_BUCKET)),
        adhoc_rule(Limit.of_ns(100, 60 * NS_PER_SECOND, Algorithm.LEAKY_BUCKET, queue=True)),
        adhoc_rule(Limit.of_ns(100, day, Algorithm.FIXED_WINDOW)),
        adhoc_rule(Limit.of_ns(100, day, Algorithm.FIXED_WINDOW, first_hit=True)),
        adhoc_rule(Limit.of_ns(100, day, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY)),
        adhoc_rule(
            Limit.of_ns(
                100, day, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone="Europe/Berlin"
            )
        ),
    ]

    assert len({rule.id for rule in rules}) == len(rules)
