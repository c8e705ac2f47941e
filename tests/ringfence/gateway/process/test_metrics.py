"""Prometheus metrics of a gateway worker."""

from prometheus_client.parser import text_string_to_metric_families

from tests.ringfence.gateway.gateway import api, ask, post


async def samples(gateway) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and the values of its labels."""
    response = await ask(gateway, "GET", "/metrics")
    assert response.status == 200
    assert response.content_type.startswith("text/plain")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }


async def test_metrics_count_responses_decisions_and_refusals_of_all_ports() -> None:
    check = {"domain": "api", "descriptors": [{"client": "x"}]}
    entries = [{"key": "client", "value": "x"}]
    async with api() as gateway:
        for _ in range(3):
            await post(gateway, "/v1/check", check)
        await post(gateway, "/v1/check", {"checks": [check, check]})
        await post(gateway, "/v1/check", b"{")
        await post(gateway, "/json", {"domain": "api", "descriptors": [{"entries": entries}]})
        await ask(gateway, "GET", "/v1/auth", peer="203.0.113.1")
        await post(gateway, "/shouldAllowRequest", {"clientId": "y"})

        metrics = await samples(gateway)

    requests = "ringfence_gateway_requests_total"
    assert {name[1]: value for name, value in metrics.items() if name[0] == requests} == {
        "/v1/check": 5,
        "/json": 1,
        "/v1/auth": 1,
        "/shouldAllowRequest": 1,
        "/metrics": 1,
    }
    decisions = "ringfence_gateway_decisions_total"
    assert (metrics[decisions, "allowed", "owner"], metrics[decisions, "denied", "owner"]) == (
        5,
        3,
    )
    assert metrics["ringfence_gateway_refusals_total", "bad_body"] == 1
    assert metrics["ringfence_gateway_bugs_total",] == 0
    assert metrics["ringfence_gateway_ready",] == 1


async def test_metrics_do_not_contain_keys() -> None:
    async with api() as gateway:
        check = {"domain": "api", "descriptors": [{"client": "secret-client"}]}
        await post(gateway, "/v1/check", check)
        response = await ask(gateway, "GET", "/metrics")

    assert b"secret-client" not in response.body
