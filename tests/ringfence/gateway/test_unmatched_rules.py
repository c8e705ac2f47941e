"""Reports of domains and keys that no rule can match."""

import pytest

import ringfence
from ringfence.errors import ConfigError
from ringfence.gateway.process.worker import make_api, require_rules
from tests.ringfence.gateway.gateway import RULES, api, ask, json_of, post, rls, settings_of
from tests.ringfence.gateway.grpc.test_rls import request
from tests.ringfence.gateway.process.test_metrics import samples

METRIC = "ringfence_gateway_unmatched_checks_total"


@pytest.mark.parametrize("quota", [False, True])
async def test_an_envoy_domain_without_rules_is_logged_once(
    quota: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with rls(quota=quota) as service:
        for _ in range(3):
            message = request("client=x")
            message.domain = "apo"
            await service.should_rate_limit(message)

    assert len(caplog.messages) == 1
    assert "domain 'apo' has no rules" in caplog.text
    assert "did you mean 'api'?" in caplog.text


async def test_unmatched_checks_are_counted_by_known_or_unknown_domain() -> None:
    async with api() as gateway:
        await post(gateway, "/v1/check", {"domain": "apo", "descriptors": [{"client": "x"}]})
        for key in ("client", "nothing", "path"):
            await post(gateway, "/v1/check", {"domain": "api", "descriptors": [{key: "x"}]})
        metrics = await samples(gateway)

    assert (metrics[METRIC, "unknown"], metrics[METRIC, "known"]) == (1, 2)


async def test_the_domain_of_v1_auth_is_checked_at_the_first_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with api(domain="apo") as gateway:
        for _ in range(2):
            assert (await ask(gateway, "GET", "/v1/auth", peer="203.0.113.1")).status == 200

    assert len(caplog.messages) == 1
    assert "domain 'apo' has no rules" in caplog.text


@pytest.mark.parametrize(
    ("settings", "report"),
    [
        ({"domain": "apo"}, "domain 'apo' has no rules"),
        ({"auth": ["client=ip", "ip"]}, "no rule for descriptor key 'ip'"),
    ],
)
async def test_unmatchable_settings_cause_a_warning_or_an_error_at_start(
    settings: dict[str, object], report: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ringfence.local(RULES) as limiter:
        require_rules(limiter, settings_of(**settings))
        assert len(caplog.messages) == 1
        assert report in caplog.text
        with pytest.raises(ConfigError, match=report):
            require_rules(limiter, settings_of(**settings, strict=True))


async def test_default_settings_and_settings_with_rules_cause_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = {"domain": "web", "descriptors": []}
    async with ringfence.local(other) as limiter:
        require_rules(limiter, settings_of(strict=True))
    async with ringfence.local(RULES) as limiter:
        require_rules(limiter, settings_of(auth=["path+client=ip"], strict=True))

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/check", {"domain": "apo", "descriptors": [{"client": "x"}]}),
        ("/v1/check", {"checks": [{"domain": "apo", "descriptors": [{"client": "x"}]}]}),
        ("/json", {"domain": "apo", "descriptors": [{"entries": [{"key": "client"}]}]}),
    ],
)
async def test_a_strict_gateway_answers_unmatched_checks_with_400(path: str, body: object) -> None:
    async with ringfence.local(RULES, strict=True) as limiter:
        gateway = make_api(limiter, settings_of(strict=True))
        response = await post(gateway, path, body)

    assert response.status == 400
    assert "domain 'apo' has no rules" in json_of(response)["detail"]
    assert gateway.counters["bugs"] == 0
