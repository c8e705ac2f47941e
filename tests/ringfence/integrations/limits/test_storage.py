"""Storage for `limits`: it fulfils the contract and matches the storages of the library."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond, parse
from limits.errors import StorageError
from limits.storage import MemoryStorage, storage_from_string
from limits.strategies import (
    STRATEGIES,
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from ringfence.client.blocking.blocking_limiter import BlockingLimiter, connect, local
from ringfence.errors import ConfigError, PeerUnavailable
from ringfence.integrations.limits import RingfenceStorage
from ringfence.rules import RuleSet

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values())
NOWHERE = "ringfence://127.0.0.1:9"


@pytest.fixture
def storage(limiter):
    return RingfenceStorage(limiter=limiter)


steps = st.lists(
    # No instant is exactly a window's end, because `limits` counts the closed interval.
    st.tuples(st.sampled_from([0.001, 0.301, 3.001, 7.001, 12.001, 25.001]), st.integers(1, 4)),
    max_size=25,
)


@every_strategy
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps, amount=st.integers(1, 8))
def test_decisions_equal_those_of_the_memory_storage_of_limits(
    strategy, steps, amount, clock, limiter
):
    ours, theirs = (strategy(each) for each in (RingfenceStorage(limiter=limiter), MemoryStorage()))
    item = RateLimitItemPerSecond(amount, 10)
    ours.storage.reset()

    for gap, cost in steps:
        clock.advance(gap)
        assert ours.test(item, "a", cost=cost) == theirs.test(item, "a", cost=cost)
        assert ours.hit(item, "a", cost=cost) == theirs.hit(item, "a", cost=cost)
        assert_same_stats(ours, theirs, item)


def assert_same_stats(ours: RateLimiter, theirs: RateLimiter, item: RateLimitItem) -> None:
    stats, expected = ours.get_window_stats(item, "a"), theirs.get_window_stats(item, "a")
    assert stats.remaining == expected.remaining
    if stats.remaining < item.amount:
        assert stats.reset_time == pytest.approx(expected.reset_time, abs=1e-5)


@every_strategy
def test_a_hundred_concurrent_threads_get_exactly_the_limit(strategy, storage):
    limiter, five = strategy(storage), RateLimitItemPerMinute(5)

    with ThreadPoolExecutor(100) as pool:
        allowed = list(pool.map(lambda _: limiter.hit(five, "all"), range(100)))

    assert sum(allowed) == 5


@every_strategy
def test_a_cleared_limit_starts_again_from_zero(strategy, storage):
    limiter, once = strategy(storage), parse("1/minute")
    assert limiter.hit(once, "a")
    assert limiter.hit(once, "b")

    limiter.clear(once, "a")

    assert limiter.hit(once, "a")
    assert not limiter.hit(once, "b")


@every_strategy
def test_a_reset_removes_all_counters_and_reaches_other_processes_within_a_second(
    strategy, limiter, monkeypatch
):
    ours, another = (strategy(RingfenceStorage(limiter=limiter)) for _ in range(2))
    once = parse("1/hour")
    assert ours.hit(once, "a")
    assert not another.hit(once, "a")

    assert ours.storage.reset() == 1

    assert ours.hit(once, "a")
    assert not another.hit(once, "a")
    later = time.monotonic() + 1.1
    monkeypatch.setattr("ringfence.integrations.limits.counting.monotonic", lambda: later)
    assert not another.hit(once, "a"), "the hit after the reset counts for both"
    ours.clear(once, "a")
    assert another.hit(once, "a")


def test_a_hit_of_a_million_units_takes_less_than_2_s(storage):
    limiter, million = MovingWindowRateLimiter(storage), parse("1000000/day")
    began = time.process_time()

    assert limiter.hit(million, "a", cost=1_000_000)
    assert limiter.get_window_stats(million, "a").remaining == 0
    assert not limiter.hit(million, "a")

    assert time.process_time() - began < 2


def test_only_fixed_windows_count_denied_hits(storage):
    item = parse("10/minute")
    fixed, moving = FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)

    assert fixed.hit(item, "a", cost=8)
    assert not fixed.hit(item, "a", cost=5)
    assert storage.get(item.key_for("a")) == 13
    assert not moving.hit(item, "a", cost=11)
    assert moving.hit(item, "a", cost=10)
    assert SlidingWindowCounterRateLimiter(storage).hit(item, "a", cost=10)


def test_hits_with_cost_0_always_pass_and_are_not_counted(storage, clock):
    assert storage.acquire_entry("k/1/1/minute", 1, 60, 1)
    assert storage.acquire_entry("k/1/1/minute", 1, 60, 0)
    assert storage.acquire_sliding_window_entry("k/1/1/minute", 0, 60, 0)
    assert storage.incr("k/1/1/minute", 60, 0) == 0
    assert storage.get_expiry("k/1/1/minute") == clock.seconds


@pytest.mark.parametrize("key", ["named/by/nobody", "plain", "LIMITER/a/5/2/minute"])
def test_a_window_can_be_read_with_any_form_of_key(key, storage, clock):
    """Count with a period of 30 seconds, although the last key names two minutes."""
    assert [storage.incr(key, 30), storage.incr(key, 30, 4)] == [1, 5]

    clock.advance(10)
    assert storage.get(key) == 5
    assert storage.get_expiry(key) == pytest.approx(clock.seconds + 20)
    storage.clear(key)
    assert storage.get(key) == 0
    assert storage.get_expiry(key) == clock.seconds


def test_a_full_cache_of_keys_evicts_the_oldest_key(storage, monkeypatch):
    monkeypatch.setattr("ringfence.integrations.limits.counting._CACHE_SIZE", 2)
    for key in ("a", "b", "c", "c"):
        storage.incr(key, 30)

    assert [storage.get(key) for key in ("a", "b", "c")] == [0, 1, 2]
    assert storage.reset() == 2
    assert storage.reset() == 0


def test_an_uncounted_key_without_a_period_has_no_window(storage, clock):
    for key in ("odd", "odd/0/minute", "odd/x/minute", "odd/1/fortnight"):
        storage.clear(key)
        assert (storage.get(key), storage.get_expiry(key)) == (0, clock.seconds)


def test_the_end_of_a_recently_read_window_needs_no_request(storage, limiter):
    requests = record_requests(limiter)
    key = parse("5/minute").key_for("a")
    storage.incr(key, 60)
    requests.clear()

    storage.get(key)
    first = storage.get_expiry(key)
    assert len(requests) == 1
    assert storage.get_expiry(key) == pytest.approx(first)
    assert len(requests) == 2


def record_requests(limiter: BlockingLimiter) -> list[object]:
    requests: list[object] = []
    run = limiter.run

    def recorded(call):
        requests.append(call)
        return run(call)

    limiter.run = recorded
    return requests


def test_a_cached_window_is_not_used_beyond_its_end(storage, clock):
    key = parse("5/minute").key_for("a")
    storage.incr(key, 60)
    storage.get(key)
    clock.advance(61)

    assert storage.get_expiry(key) == clock.seconds


def test_a_moving_window_starts_at_its_oldest_hit(storage, clock):
    key, began = "LIMITER/a/5/1/minute", clock.seconds
    assert storage.get_moving_window(key, 5, 60) == (began, 0)
    for gap in (0, 10, 20):
        clock.advance(gap)
        storage.acquire_entry(key, 5, 60)

    assert storage.get_moving_window(key, 5, 60) == (pytest.approx(began), 3)
    clock.advance(31)
    assert storage.get_moving_window(key, 5, 60) == (pytest.approx(began + 10), 2)


def test_without_a_cluster_requests_pass_unless_errors_are_configured():
    item = parse("1/minute")
    passing = storage_from_string(NOWHERE, connect_timeout=0.05)
    failing = storage_from_string(f"{NOWHERE}?raise_on_outage=yes&connect_timeout=0.05")
    wrapping = storage_from_string(
        NOWHERE, connect_timeout=0.05, raise_on_outage=True, wrap_exceptions=True
    )
    try:
        assert not passing.check()
        for strategy in STRATEGIES.values():
            assert [strategy(passing).hit(item, "a") for _ in range(3)] == [True] * 3
        assert passing.incr("k/1/1/minute", 60, 7) == 7
        assert not failing.check()
        for _ in range(2):
            with pytest.raises(PeerUnavailable):
                FixedWindowRateLimiter(failing).hit(item, "a")
            assert failing.storage.is_open  # The next call does not wait for a node again.
        with pytest.raises(StorageError) as caught:
            FixedWindowRateLimiter(wrapping).hit(item, "a")
        assert isinstance(caught.value.storage_error, PeerUnavailable)
    finally:
        for storage in (passing, failing, wrapping):
            storage.close()


@every_strategy
def test_an_address_can_deny_all_hits_without_a_cluster(strategy):
    storage = storage_from_string(f"{NOWHERE}?on_failure=deny", connect_timeout=0.05)
    item = parse("5/minute")
    denying = strategy(storage)
    try:
        assert not denying.test(item, "a")
        assert not denying.hit(item, "a")
        assert denying.get_window_stats(item, "a").remaining <= 0
    finally:
        storage.close()


def test_a_closed_storage_raises_a_clear_error():
    storage = storage_from_string("ringfence+local://")
    assert storage.check()
    storage.close()

    assert not storage.check()
    with pytest.raises(ConfigError, match="closed"):
        storage.get("k/1/1/minute")


def test_check_returns_false_after_any_error(limiter, monkeypatch):
    storage = RingfenceStorage(limiter=limiter)

    def fail(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(limiter, "run", fail)
    assert storage.check() is False


def test_the_error_for_a_fractional_cost_states_the_remedy(storage):
    for strategy in STRATEGIES.values():
        with pytest.raises(
            ConfigError, match=r"cost must be a whole number.* got 0\.5;.*smaller unit"
        ):
            strategy(storage).hit(parse("5/minute"), "a", cost=0.5)


def test_a_negative_cost_is_an_error(storage):
    for strategy in STRATEGIES.values():
        with pytest.raises(ConfigError, match=r"cost must be .*got -1"):
            strategy(storage).hit(parse("5/minute"), "a", cost=-1)


def test_closing_a_storage_does_not_close_a_given_limiter(limiter):
    RingfenceStorage(limiter=limiter).close()

    assert limiter.check_limit("1/s", "a")


@every_strategy
def test_all_storages_of_a_cluster_share_one_limit(strategy, cluster):
    item = parse("5/year")
    storages = [storage_from_string(cluster.url) for _ in range(2)]
    limiters = [strategy(storage) for storage in storages]
    key = strategy.__name__
    try:
        with ThreadPoolExecutor(40) as pool:
            allowed = list(pool.map(lambda n: limiters[n % 2].hit(item, key), range(40)))

        assert sum(allowed) == 5
        assert [each.get_window_stats(item, key).remaining for each in limiters] == [0, 0]
        limiters[0].clear(item, key)
        assert limiters[1].get_window_stats(item, key).remaining == 5
        assert all(storage.check() for storage in storages)
    finally:
        for storage in storages:
            storage.close()


def test_the_cluster_address_can_come_from_the_environment(cluster, monkeypatch):
    monkeypatch.setenv("RINGFENCE_URL", cluster.url)
    storage = storage_from_string("ringfence://")
    try:
        assert storage.check()
    finally:
        storage.close()


def test_a_forked_child_has_separate_in_process_counters():
    storage = storage_from_string("ringfence+local://")
    storage.incr("k/1/1/minute", 60)
    child = os.fork()
    if not child:
        os._exit(storage.incr("k/1/1/minute", 60))
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        storage.close()


@pytest.mark.parametrize(
    ("uri", "options", "error"),
    [
        ("ringfence://h:1?speed=9", {}, "option of the storage address must be .*, got 'speed'"),
        (
            "ringfence://h:1?raise_on_outag=true",
            {},
            "one of ca, connect_timeout, datacenter, on_failure, raise_on_outage, server_name, "
            "timeout, token_file, got 'raise_on_outag'",
        ),
        ("ringfence://?raise_on_outag=true", {}, "got 'raise_on_outag'"),
        ("ringfence://h:1", {"speed": 9}, "one of connect_timeout, raise_on_outage, got 'speed'"),
        ("ringfence://h:1?connect_timeout=soon", {}, "must be a number of seconds.*, got 'soon'"),
        ("ringfence://h:1", {"connect_timeout": -1}, "must be a number of seconds.*, got -1"),
        ("ringfence://h:1?raise_on_outage=perhaps", {}, "must be true or false, got 'perhaps'"),
        ("ringfence://?ca=x", {}, r"must have a host before its options, got ringfence://\?ca; w"),
        ("ringfence+local://h", {}, "must have no host and no option"),
        ("async+ringfence+local://", {"connect_timeout": 1}, "must have no host and no option"),
        ("async+ringfence://h:x", {}, "port must be a number"),
        ("ringfence://h:1", {}, r"h is beyond loopback.*; add \?ca=FILE"),
        ("async+ringfence://h:1", {}, r"h is beyond loopback.*; add \?ca=FILE"),
        ("ringfence://h:1?ca=nowhere.pem", {}, "nowhere.pem"),
        ("ringfence://", {}, "no cluster address: give one, or set RINGFENCE_URL"),
        ("async+ringfence://", {}, "no cluster address: give one, or set RINGFENCE_URL"),
    ],
)
def test_an_invalid_address_or_option_is_refused_at_construction(uri, options, error, monkeypatch):
    monkeypatch.delenv("RINGFENCE_URL", raising=False)

    with pytest.raises(ConfigError, match=error):
        storage_from_string(uri, **options)


def test_options_can_be_arguments_or_part_of_the_address():
    for storage in (
        storage_from_string(NOWHERE, raise_on_outage="off", connect_timeout="0.05"),
        storage_from_string(f"{NOWHERE}?raise_on_outage=False&connect_timeout=0.05"),
    ):
        assert storage.incr("k/1/1/minute", 60) == 1
        storage.close()


def test_the_storage_accepts_local_and_connected_limiters():
    with local(RuleSet()) as limiter, connect(NOWHERE, connect_timeout=0.05) as other:
        assert RingfenceStorage(limiter=limiter).check()
        assert not RingfenceStorage(limiter=other).check()
