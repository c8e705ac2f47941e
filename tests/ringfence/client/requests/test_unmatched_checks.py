"""Checks that no rule can match are counted and reported."""

import pytest

import ringfence
import ringfence.blocking
from ringfence.client.requests.unmatched_checks import UnmatchedChecks
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor, RuleSet
from ringfence.rules.loading.mapping import load_mapping

LIMIT = {"unit": "minute", "requests_per_unit": 5}
FILE = {
    "domain": "api",
    "descriptors": [
        {"key": "client", "rate_limit": LIMIT},
        {"key": "path", "value": "/a", "rate_limit": LIMIT},
    ],
}


def rules() -> RuleSet:
    """Return a new rule set with the same content, as after a reload."""
    return load_mapping(FILE).rules


def of(*pairs: tuple[str, str]) -> list[Descriptor]:
    return [Descriptor(tuple(pairs))]


async def test_a_check_of_an_unknown_domain_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ringfence.local(FILE) as limiter:
        for number in range(3):
            decision = await limiter.check("apii", {"client": str(number)})
            await limiter.check("apii", [{"user": str(number)}, {"client": "b"}])

    assert decision.allowed
    assert len(caplog.messages) == 1
    assert "'apii' has no rules" in caplog.text
    assert "did you mean 'api'?" in caplog.text
    assert limiter.unmatched == {"known": 0, "unknown": 6}


async def test_a_check_by_keys_that_no_rule_has_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ringfence.local(FILE) as limiter:
        for number in range(3):
            await limiter.check("api", {"clinet": str(number)})

    assert len(caplog.messages) == 1
    assert "did you mean 'client'?" in caplog.text
    assert limiter.unmatched == {"known": 3, "unknown": 0}


async def test_another_value_of_a_known_key_is_counted_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ringfence.local(FILE, strict=True) as limiter:
        await limiter.check("api", {"path": "/b"})
        await limiter.check("api", [{"path": "/b"}, {"unknown": "x"}])
        await limiter.check_many("api", [{"path": "/b"}, {"client": "a"}])

    assert caplog.messages == []
    assert limiter.unmatched == {"known": 3, "unknown": 0}


@pytest.mark.parametrize(
    ("domain", "request_"),
    [("apii", {"client": "a"}), ("api", {"ip": "a"}), ("api", [{"ip": "a"}, {"user": "b"}])],
)
async def test_a_strict_limiter_raises_where_no_rule_can_match(
    domain: str, request_: object
) -> None:
    async with ringfence.local(FILE, strict=True) as limiter:
        for _ in range(2):
            with pytest.raises(ConfigError, match="never limited"):
                await limiter.check(domain, request_)  # type: ignore[arg-type]


def test_the_blocking_limiter_counts_and_raises_alike(caplog: pytest.LogCaptureFixture) -> None:
    with ringfence.blocking.local(FILE, strict=True) as limiter:
        with pytest.raises(ConfigError, match="there are rules for api"):
            limiter.check("apii", {"client": "a"})
        assert limiter.unmatched == {"known": 0, "unknown": 1}
    assert caplog.messages == []


def test_expected_descriptors_are_verified_when_a_blocking_limiter_opens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = ringfence.blocking.local(FILE)
    assert limiter.expect("api", ["ip"]) == []
    assert caplog.messages == []

    with limiter:
        assert len(caplog.messages) == 1
        assert limiter.expect("api", ["ip"]) != []
        assert limiter.expect("api", ["client"]) == []


def test_expected_descriptors_are_verified_at_each_change_of_rules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unmatched = UnmatchedChecks()

    assert unmatched.expect(None, "api", [["ip"], ["client"]]) == []
    assert caplog.messages == []
    same = rules()
    unmatched.verify(same)
    unmatched.verify(same)
    assert len(caplog.messages) == 1
    unmatched.verify(rules())
    assert len(caplog.messages) == 2
    unmatched.verify(load_mapping(FILE | {"domain": "web"}).rules)
    assert "there are rules for web" in caplog.messages[2]


def test_many_kinds_of_checks_are_counted_and_few_remembered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unmatched, held = UnmatchedChecks(), rules()
    for number in range(1000):
        unmatched.note(held, "api", of((f"key{number}", "a")))

    assert unmatched.counts["known"] == 1000
    assert len(caplog.messages) == 256


def test_a_strict_limiter_raises_for_more_kinds_than_it_remembers() -> None:
    unmatched, held = UnmatchedChecks(strict=True), rules()
    for number in range(1000):
        with pytest.raises(ConfigError, match=f"'key{number}'"):
            unmatched.note(held, "api", of((f"key{number}", "a")))
    unmatched.note(held, "api", of(("path", "/b")))
