"""Wrong arguments raise an error in the caller."""

import pytest

import ringfence.blocking
from ringfence.errors import ConfigError
from ringfence.limiter import Limit
from ringfence.rules import Descriptor
from tests.ringfence.client.limiters import described, limiter_of


@pytest.mark.parametrize("cost", [-1, 2**53, 1.0, True, "1", None])
async def test_an_invalid_cost_raises_in_the_caller(cost):
    async with limiter_of(described("user", 1)) as limiter:
        for call in (
            lambda: limiter.check("d", {"user": "a"}, cost),
            lambda: limiter.refund("d", {"user": "a"}, cost),
            lambda: (
                limiter.check("d", [Descriptor((("user", "a"),), cost=cost)])
                if cost is not None
                else limiter.check("d", {"user": "a"}, None)
            ),
            lambda: limiter.check_limit("1/s", "key", cost=cost),
        ):
            with pytest.raises(ConfigError, match="whole number"):
                await call()


@pytest.mark.parametrize(
    ("descriptors", "words"),
    [
        ("user", "must be a mapping or a list, got 'user'"),
        ([("user", "a")], "write one descriptor as a mapping"),
        ([[("user", "a", "b")]], "must be a mapping or a list of \\(key, value\\) pairs"),
        ({"user": 42}, "entry 'user' must be text, got 42; write '42'"),
        ({"path": 42}, "must be text"),
        ({"user": None}, "must be text, got None; leave it out"),
        ({7: "a"}, "must be text"),
        (Descriptor((("user", 42),), limit=Limit(1, 1)), "must be text"),
        (5, "must be a mapping or a list, got 5"),
        (None, "must be a mapping or a list, got None"),
        ([5], "must be a mapping or a list"),
        ([[("user", "a"), 5]], "must be a mapping or a list"),
        ({}, "must have an entry"),
        ([], "must have an entry"),
        ([{}], "must have an entry"),
    ],
)
async def test_malformed_descriptors_raise_in_the_caller(descriptors, words):
    async with limiter_of(described("user", 1)) as limiter:
        with pytest.raises(ConfigError, match=words):
            await limiter.check("d", descriptors)


@pytest.mark.parametrize("domain", [None, 7, ["d"], b"d", ""])
async def test_a_domain_that_is_not_text_is_an_error(domain):
    async with limiter_of(described("user", 1)) as limiter:
        for ask in (limiter.check, limiter.peek, limiter.acquire, limiter.charge):
            with pytest.raises(ConfigError, match="domain must be text"):
                await ask(domain, {"user": "a"})
        with pytest.raises(ConfigError, match="domain must be text"):
            await limiter.check_many(domain, [{"user": "a"}])


async def test_a_value_that_is_not_text_is_always_an_error():
    async with limiter_of(described("user", 1)) as limiter:
        with pytest.raises(ConfigError, match="must be text"):
            await limiter.check("other", {"user": 42})


async def test_one_of_several_descriptors_may_be_empty():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", [{}, {"user": "a"}])

    assert [status.remaining for status in decision.statuses] == [None, 4]


@pytest.mark.parametrize("requests", [5, None, {"user": "a"}, "user"])
async def test_many_requests_are_a_list(requests):
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match="requests must be a list"):
            await limiter.check_many("d", requests)


@pytest.mark.parametrize("max_wait", ["1", None, float("nan"), -1, True])
async def test_max_wait_is_a_number_of_seconds(max_wait):
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match=r"max_wait must be a duration"):
            await limiter.acquire("d", {"user": "a"}, max_wait=max_wait)


async def test_only_a_decision_can_be_released_or_kept():
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match="got None"):
            await limiter.release(None)
        with pytest.raises(ConfigError, match="got None"):
            limiter.keep(None)


@pytest.mark.parametrize("limit", [5, None, []])
async def test_an_ad_hoc_limit_is_text_or_a_limit(limit):
    async with limiter_of() as limiter:
        with pytest.raises(ConfigError, match="limit must be text"):
            await limiter.check_limit(limit, "key")


@pytest.mark.parametrize("key", [(), (42,), ("a", None)])
async def test_an_ad_hoc_limit_needs_a_key_of_text(key):
    async with limiter_of() as limiter:
        with pytest.raises(ConfigError, match="key must be one or more texts"):
            await limiter.check_limit("5/s", *key)


async def test_a_malformed_ad_hoc_limit_is_an_error():
    async with limiter_of() as limiter:
        with pytest.raises(ConfigError):
            await limiter.check_limit("a few per minute", "key")


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        ({1: "b"}, r"^key of a descriptor entry must be text, got 1; write '1'$"),
        ({"a": 1}, r"^descriptor entry 'a' must be text, got 1; write '1'$"),
        ({b"a": "b"}, r"^key of a descriptor entry must be text, got b'a'; decode it$"),
    ],
)
async def test_the_error_for_an_entry_names_the_key_or_the_value(descriptor, message):
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match=message):
            await limiter.check("d", descriptor)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ((5,), "domain must be text"),
        (("d", "user"), r"path must be a list of descriptor keys, got 'user'; write \['user'\]"),
        (("d", 5), "path must be a list of descriptor keys, got 5"),
        (("d", [5]), r"path must be a list of descriptor keys, got \[5\]"),
    ],
)
async def test_expected_paths_are_lists_of_text(expected, message):
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match=message):
            limiter.expect(*expected)
    with pytest.raises(ConfigError, match=message):
        ringfence.blocking.connect("ringfence://localhost").expect(*expected)
