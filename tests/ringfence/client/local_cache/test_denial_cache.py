from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.limiter import Code, Engine, Outcomes
from ringfence.peering.engine_choice import decide_batch, engine_rules
from ringfence.rules import Descriptor
from ringfence.rules.loading.mapping import load_mapping
from ringfence.wire import Batch, Op, Results, Source

KINDS = {
    "token": {"algorithm": "token_bucket"},
    "leaky": {"algorithm": "leaky_bucket"},
    "queue": {"algorithm": "leaky_bucket", "mode": "queue"},
    "fixed": {"algorithm": "fixed_window"},
    "log": {"algorithm": "sliding_window_log"},
    "sliding": {"algorithm": "sliding_window"},
    "slots": {"algorithm": "sliding_window", "slots": 4},
    "soft": {"algorithm": "fixed_window", "soft": "20%"},
    "places": {"algorithm": "concurrency"},
    "parts": {"algorithm": "fixed_window", "global": {"mode": "split"}},
}
RULES = load_mapping(
    {
        "domain": "d",
        "descriptors": [
            *(
                {"key": name, "rate_limit": {"requests_per_unit": 10, "unit": "minute", **more}}
                for name, more in KINDS.items()
            ),
            {
                "key": "shadow",
                "shadow_mode": True,
                "rate_limit": {"requests_per_unit": 10, "unit": "minute"},
            },
            {
                "key": "quota",
                "quota_mode": True,
                "rate_limit": {"requests_per_unit": 10, "unit": "minute"},
            },
        ],
    }
).rules
START = 30_000_000_000
TIMELY = [name for name in KINDS if name not in ("places", "parts")]


def key_of(name, value="x"):
    [match] = RULES.match("d", [Descriptor(((name, value),))])
    return match.key


def denied(*keys, cost=1, retry_after=10.0, source=Source.OWNER, groups=()):
    """Return a batch, and results that deny all its rows."""
    count = len(keys)
    retry = round(retry_after * 1e9)
    outcomes = Outcomes(
        *([Code.DENIED.value] * count, [10] * count, [0] * count, [retry] * count),
        *([6 * retry] * count, [0] * count, [0] * count),
    )
    batch = Batch(Op.CHECK, list(keys), [cost] * count, list(groups))
    return batch, Results(outcomes, [source] * count)


class World:
    def __init__(self, most=100):
        self.now = 100.0
        self.cache = LocalCache(RULES.by_id, most, None, lambda: self.now)
        self.denials = self.cache.denials

    def learn(self, *keys, node="a", **more):
        self.denials.add_results(node, *denied(*keys, **more), self.now)

    def knows(self, key, cost=1):
        return self.row(key, cost) is not None

    def row(self, key, cost=1):
        verdicts = self.cache.results(Batch(Op.CHECK, [key], [cost]))
        return None if verdicts is None else verdicts.row(0)


def test_a_cached_denial_lasts_for_retry_after_from_its_request():
    w = World()
    w.learn(key_of("token"), retry_after=10.0)

    w.now += 9.999
    still = w.knows(key_of("token"))
    w.now += 0.001

    assert (still, w.knows(key_of("token"))) == (True, False)


def test_a_cached_denial_shows_its_remaining_durations():
    w = World()
    w.learn(key_of("token"), retry_after=10.0)
    w.now += 4.0

    row = w.row(key_of("token"))

    assert row == (Code.DENIED, 10, 0, 6_000_000_000, 56_000_000_000, 0, 0, Source.CACHE)


def test_the_owner_is_asked_about_other_costs_than_the_denied_one():
    w = World()
    w.learn(key_of("token"), cost=3)

    assert [w.knows(key_of("token"), cost) for cost in (0, 1, 2, 3, 4)] == [
        *(False, False, False),
        *(True, False),
    ]


def test_only_denials_that_end_by_time_alone_are_cached():
    w = World()
    names = [*KINDS, "shadow", "quota"]
    for name in names:
        w.learn(key_of(name))

    assert [name for name in names if w.knows(key_of(name))] == TIMELY


def test_only_denials_of_ungrouped_counters_by_owners_are_cached():
    w = World()
    w.learn(key_of("token", "1"), source=Source.STANDBY)
    w.learn(key_of("token", "2"), source=Source.POLICY)
    w.learn(key_of("token", "3"), key_of("fixed", "3"), key_of("log", "3"), groups=(2, 1))
    limited, verdicts = denied(key_of("token", "4"))
    limited.limits, limited.which = [RULES.rules()[0].limit], [1]
    w.denials.add_results("a", limited, verdicts, w.now)

    assert not w.knows(key_of("token", "1"))
    assert not w.knows(key_of("token", "2"))
    assert not w.knows(key_of("token", "3"))
    assert not w.knows(key_of("token", "4"))
    assert w.knows(key_of("log", "3"))


def test_a_denial_is_dropped_when_its_own_node_revokes_it():
    w = World()
    w.learn(key_of("token"), node="a")
    w.denials.on_revoked("b", [key_of("token")])
    before = w.knows(key_of("token"))
    w.denials.on_revoked("a", [key_of("log"), key_of("token")])

    assert (before, w.knows(key_of("token"))) == (True, False)


def test_denials_of_a_lost_node_are_dropped():
    w = World()
    w.learn(key_of("token"), key_of("fixed"), node="a")
    w.learn(key_of("log"), node="b")

    w.denials.on_revoked("a", [])

    assert [w.knows(key_of(name)) for name in ("token", "fixed", "log")] == [False, False, True]


def test_a_full_cache_drops_the_oldest_denial():
    w = World(most=2)
    for value in "1213":
        w.learn(key_of("token", value))

    assert [w.knows(key_of("token", value)) for value in "123"] == [True, False, True]
    assert len(w.denials) == 2


@given(
    name=st.sampled_from(TIMELY),
    steps=st.lists(
        st.tuples(st.integers(1, 7), st.integers(0, 12_000_000_000), st.integers(0, 200_000_000)),
        max_size=40,
    ),
)
def test_a_cached_denial_lasts_as_long_as_that_of_the_owner(name, steps):
    w, owner, key, now, late_ns = World(), Engine(max_keys=10), key_of(name), START, 0
    owner.set_rules(engine_rules(RULES.rules()))
    for cost, pause, on_the_way in steps:
        now += pause
        w.now = now / 1e9
        batch = Batch(Op.CHECK, [key], [cost])
        known = w.row(key, cost)
        if known is not None:
            asked = decide_batch(owner, batch, now)
            assert asked.codes == [Code.DENIED]
            assert known[3] - 1000 <= asked.retry_after_ns[0] <= known[3] + late_ns + 1000
        else:
            now += on_the_way
            verdicts = Results(decide_batch(owner, batch, now), [Source.OWNER])
            if verdicts.outcomes.codes == [Code.DENIED]:
                late_ns = on_the_way
            elif verdicts.outcomes.codes != [Code.NEVER]:
                late_ns = 10**18  # More units are in use than at the denial.
            w.denials.add_results("a", batch, verdicts, w.now)


def test_a_batch_is_decided_locally_only_if_every_row_is_cached():
    w = World()
    w.learn(key_of("token"), key_of("fixed"))
    both = [key_of("token"), key_of("fixed")]

    assert w.cache.results(Batch(Op.CHECK, both, [1, 1])).sources == [Source.CACHE] * 2
    assert w.cache.results(Batch(Op.CHECK, [*both, key_of("log")], [1, 1, 1])) is None
    assert w.cache.results(Batch(Op.CHECK, both, [1, 1], [2])) is None


def test_many_requests_are_decided_locally_like_single_ones():
    names = [name for name in TIMELY if name != "queue"]
    requests = [{name: "x"} for name in names]
    rules = [RULES.match("d", [Descriptor(((name, "x"),))])[0].rule for name in names]
    keys = [key_of(name) for name in names]
    w = World()
    before = w.cache.decide_all("d", requests, rules, keys, [1] * len(keys))
    w.learn(*keys[::2], cost=2)
    costs = [cost for cost, _ in zip(cycle((2, 2, 1, 0)), keys)]

    together = w.cache.decide_all("d", requests, rules, keys, costs)

    assert before is None
    assert together == [
        w.cache.decide("d", *each) for each in zip(requests, rules, keys, costs, strict=True)
    ]
    assert {True, False} == {decision is None for decision in together}


def test_a_denial_that_arrives_after_its_end_is_not_cached():
    """Otherwise a delayed answer makes the client deny for a day by an old limit."""
    ends = [
        lambda denials: denials.on_revoked("b", []),
        lambda denials: denials.on_revoked("b", [key_of("token")]),
        lambda denials: denials.clear(),
    ]
    for end in ends:
        w = World()
        asked_at, w.now = w.now, w.now + 1.0
        end(w.denials)

        w.denials.add_results("a", *denied(key_of("token")), asked_at)
        late = w.knows(key_of("token"))
        w.learn(key_of("token"))

        assert (late, w.knows(key_of("token"))) == (False, True)


def test_a_bounded_number_of_revocations_is_remembered():
    w = World(most=2)
    asked_at, w.now = w.now, w.now + 1.0
    keys = [key_of("token", value) for value in "abc"]
    for key in keys:
        w.denials.on_revoked("a", [key])

    w.denials.add_results("a", *denied(*keys), asked_at)

    assert [w.knows(key) for key in keys] == [True, False, False]
