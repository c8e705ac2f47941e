"""Tests of Envoy's rate limit service by request and response messages."""

import json

import pytest
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from ringfence.gateway.grpc.rls import BadRequest, RateLimitService
from tests.ringfence.gateway.gateway import api, post, rls

R = RateLimitResponse
OK, OVER = R.OK, R.OVER_LIMIT


def request(*descriptors: str, hits: int = 0, **more: object) -> RateLimitRequest:
    """Build a request from descriptors such as `key=value`; empty text gives no entries."""
    message = RateLimitRequest(domain="api", hits_addend=hits)
    for text in descriptors:
        descriptor = message.descriptors.add()
        for entry in filter(None, text.split(",")):
            key, _, value = entry.partition("=")
            descriptor.entries.add(key=key, value=value)
    return message


def codes(response: RateLimitResponse) -> list[int]:
    return [status.code for status in response.statuses]


async def units_left(service: RateLimitService, descriptor: str) -> int:
    peek = request(descriptor)
    peek.descriptors[0].hits_addend.value = 0
    return (await service.should_rate_limit(peek)).statuses[0].limit_remaining


async def test_a_response_has_one_status_per_descriptor_in_order() -> None:
    async with rls() as service:
        answer = await service.should_rate_limit(request("wide=w", "client=x", "nothing=y", hits=4))

    assert answer.overall_code == OVER
    assert codes(answer) == [OK, OVER, OK]
    wide, client, nothing = answer.statuses
    assert (wide.current_limit.requests_per_unit, wide.current_limit.name) == (10, "wide")
    assert wide.current_limit.unit == R.RateLimit.MINUTE
    assert wide.limit_remaining == 6, "each descriptor is counted separately"
    assert (client.limit_remaining, client.current_limit.requests_per_unit) == (0, 3)
    assert not nothing.HasField("current_limit")


async def test_checks_of_other_algorithms_are_all_or_nothing() -> None:
    async with rls() as service:
        answer = await service.should_rate_limit(request("slide=s", "bucket=b", hits=8))

    assert codes(answer) == [OK, OVER]
    assert [status.limit_remaining for status in answer.statuses] == [10, 0]


async def test_a_status_has_the_remaining_units_and_the_reset_time() -> None:
    async with rls() as service:
        answers = [await service.should_rate_limit(request("client=x")) for _ in range(4)]

    assert [each.overall_code for each in answers] == [OK, OK, OK, OVER]
    statuses = [each.statuses[0] for each in answers]
    assert [each.limit_remaining for each in statuses] == [2, 1, 0, 0]
    assert {each.duration_until_reset.seconds for each in statuses} == {30}
    headers = {each.key: each.value for each in answers[3].response_headers_to_add}
    assert headers == {"retry-after": "30"}
    assert not answers[0].response_headers_to_add


async def test_the_cost_is_1_unless_request_or_descriptor_sets_it() -> None:
    async with rls() as service:
        await service.should_rate_limit(request("wide=w"))
        await service.should_rate_limit(request("wide=w", hits=2))
        with_own_hits = request("wide=w", "client=x", hits=3)
        with_own_hits.descriptors[0].hits_addend.value = 5
        await service.should_rate_limit(with_own_hits)

        assert (await units_left(service, "wide=w"), await units_left(service, "client=x")) == (
            2,
            0,
        )


def own_hits(message: RateLimitRequest, *hits: int) -> RateLimitRequest:
    """Set the `hits_addend` of each descriptor."""
    for descriptor, hits_of_one in zip(message.descriptors, hits, strict=True):
        descriptor.hits_addend.value = hits_of_one
    return message


@pytest.mark.parametrize(("key", "limit"), [("client=x", 3), ("slide=x", 10), ("bucket=x", 6)])
async def test_a_descriptor_with_0_hits_is_a_peek(key: str, limit: int) -> None:
    async with rls() as service:
        assert await units_left(service, key) == limit
        await service.should_rate_limit(request(key, hits=limit))
        used_up = await service.should_rate_limit(own_hits(request(key), 0))
        await service.should_rate_limit(own_hits(request(key), 2))
        over = await service.should_rate_limit(own_hits(request(key), 0))

    is_fixed = key == "client=x"
    assert used_up.overall_code == (OK if is_fixed else OVER), (
        "a fixed window allows it, as in the Go service"
    )
    assert over.overall_code == OVER


@pytest.mark.parametrize(("key", "limit"), [("client=x", 3), ("slide=x", 10), ("bucket=x", 6)])
async def test_a_measured_cost_is_charged_beyond_the_limit(key: str, limit: int) -> None:
    async with rls() as service:
        charges = [
            await service.should_rate_limit(own_hits(request(key), cost))
            for cost in (limit - 1, 5, 5)
        ]
        refund = await service.should_rate_limit(negative(request(key, hits=9)))
        assert await units_left(service, key) == 0
        await service.should_rate_limit(negative(request(key, hits=1)))
        assert await units_left(service, key) == 1

    assert [each.overall_code for each in charges] == [OK, OVER, OVER]
    assert refund.overall_code == OK


async def test_a_setting_turns_measured_costs_into_checks() -> None:
    async with rls(charge_hits_addend=False) as service:
        for cost in (5, 5, 5):
            await service.should_rate_limit(own_hits(request("slide=x", "wide=x"), cost, cost))
            await service.should_rate_limit(own_hits(request("bucket=x"), cost))
        refunded = await service.should_rate_limit(negative(request("wide=x", hits=5)))

        assert await units_left(service, "bucket=x") == 1
        assert await units_left(service, "slide=x") == 0
        assert refunded.overall_code == OK, "the fixed window counted 15 units"


@pytest.mark.parametrize(("key", "remaining"), [("client=x", 0), ("slide=x", 10), ("bucket=x", 6)])
async def test_only_a_fixed_window_counts_a_denied_hit(key: str, remaining: int) -> None:
    async with rls() as service:
        answers = [await service.should_rate_limit(request(key, hits=11)) for _ in range(3)]

        assert [each.overall_code for each in answers] == [OVER] * 3
        assert await units_left(service, key) == remaining


async def test_a_shadow_rule_counts_requests_that_it_would_deny() -> None:
    async with rls() as service:
        for _ in range(3):
            await service.should_rate_limit(request("trial=x"))
        await service.should_rate_limit(negative(request("trial=x")))

        assert await units_left(service, "trial=x") == 0


async def test_one_request_can_peek_charge_check_and_refund() -> None:
    message = own_hits(request("client=x", "wide=w", "slide=s", "bucket=b"), 0, 12, 1, 3)
    message.descriptors.add().entries.add(key="free", value="f")
    async with rls() as service:
        await service.should_rate_limit(request("bucket=b", hits=5))
        answer = await service.should_rate_limit(negative(message, index=3))

    assert codes(answer) == [OK, OVER, OK, OK, OK]
    assert [status.limit_remaining for status in answer.statuses] == [3, 0, 9, 4, 2**32 - 1]


@pytest.mark.parametrize(("shadow", "code"), [(False, OVER), (True, OK)])
async def test_text_that_is_not_utf8_is_denied_instead_of_an_error(shadow: bool, code: int) -> None:
    message = request("client=x").SerializeToString()
    async with rls(shadow=shadow) as service:
        answer = RateLimitResponse.FromString(await service.answer(message[:-1] + b"\xff"))
        with pytest.raises(DecodeError):
            await service.answer(b"\xff")

    assert answer.overall_code == code
    assert service.counters["refused_bad_body"] == 1


def negative(message: RateLimitRequest, index: int = 0) -> RateLimitRequest:
    """Set `is_negative_hits`, as Envoy 1.38 and later send it."""
    message.descriptors[index].MergeFromString(b"\x20\x01")
    return RateLimitRequest.FromString(message.SerializeToString())


async def test_negative_hits_refund_at_most_the_used_units_and_are_allowed() -> None:
    async with rls() as service:
        await service.should_rate_limit(request("client=x", hits=3))
        answer = await service.should_rate_limit(negative(request("client=x", hits=2)))
        assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 2)

        await service.should_rate_limit(negative(request("client=x", hits=100)))
        assert await units_left(service, "client=x") == 3


async def test_negative_hits_of_one_descriptor_do_not_affect_the_others() -> None:
    async with rls() as service:
        await service.should_rate_limit(request("client=x", "wide=w", hits=3))
        answer = await service.should_rate_limit(negative(request("wide=w", "client=x")))

    assert codes(answer) == [OK, OVER]
    assert answer.overall_code == OVER
    assert answer.statuses[0].limit_remaining == 8


async def test_a_request_can_carry_its_own_limit() -> None:
    own_limit = request("client=x")
    own_limit.descriptors[0].limit.requests_per_unit = 7
    own_limit.descriptors[0].limit.unit = 3
    async with rls() as service:
        answer = await service.should_rate_limit(own_limit)
        rule = await service.should_rate_limit(request("client=x"))

    limit = answer.statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit) == (7, R.RateLimit.HOUR)
    assert answer.statuses[0].limit_remaining == 6
    assert rule.statuses[0].limit_remaining == 2, "the rule has a separate counter"


async def test_a_replaced_rule_is_not_counted() -> None:
    async with rls() as service:
        answer = await service.should_rate_limit(request("wide=w", "special=s"))

        assert not answer.statuses[0].HasField("current_limit")
        assert answer.statuses[1].limit_remaining == 4
        assert await units_left(service, "wide=w") == 10


async def test_a_shadow_rule_counts_and_never_denies() -> None:
    async with rls() as service:
        answers = [await service.should_rate_limit(request("trial=x")) for _ in range(3)]

    assert [each.overall_code for each in answers] == [OK] * 3
    assert [each.statuses[0].code for each in answers] == [OK] * 3
    assert [each.statuses[0].limit_remaining for each in answers] == [0] * 3


async def test_quota_rules_deny_only_when_all_of_them_are_over() -> None:
    async with rls() as service:
        await service.should_rate_limit(request("quota=a", hits=2))
        one_over = await service.should_rate_limit(request("quota=a", "quota=b"))
        await service.should_rate_limit(request("quota=b"))
        both_over = await service.should_rate_limit(request("quota=a", "quota=b"))

    assert (one_over.overall_code, codes(one_over)) == (OK, [OVER, OK])
    assert (both_over.overall_code, codes(both_over)) == (OVER, [OVER, OVER])


async def test_in_shadow_mode_all_requests_pass_with_their_true_statuses() -> None:
    async with rls(shadow=True) as service:
        answers = [await service.should_rate_limit(request("client=x")) for _ in range(4)]

    assert [each.overall_code for each in answers] == [OK] * 4
    assert answers[3].statuses[0].code == OVER
    assert not answers[3].response_headers_to_add


async def test_in_quota_mode_every_rule_is_a_quota_rule() -> None:
    async with rls(quota=True) as service:
        await service.should_rate_limit(request("client=x", hits=3))
        one_over = await service.should_rate_limit(request("client=x", "wide=w", "special=s"))
        both_over = await service.should_rate_limit(request("client=x", "wide=w", hits=11))

        assert (one_over.overall_code, codes(one_over)) == (OK, [OVER, OK, OK])
        assert not one_over.statuses[1].HasField("current_limit"), "special replaces wide"
        assert one_over.statuses[2].limit_remaining == 4
        assert (both_over.overall_code, codes(both_over)) == (OVER, [OVER, OVER])


async def test_an_unlimited_rule_is_never_counted() -> None:
    async with rls() as service:
        answer = await service.should_rate_limit(request("free=x"))

    status = answer.statuses[0]
    assert (status.code, status.limit_remaining) == (OK, 2**32 - 1)
    assert not status.HasField("current_limit")


async def test_a_descriptor_without_entries_passes_uncounted() -> None:
    async with rls() as service:
        alone = await service.should_rate_limit(request(""))
        with_another = await service.should_rate_limit(request("", "client=x"))

    assert (alone.overall_code, codes(alone)) == (OK, [OK])
    assert (codes(with_another), with_another.statuses[1].limit_remaining) == ([OK, OK], 2)


async def test_dynamic_metadata_has_the_request_and_the_metadata_of_passing_rules() -> None:
    message = request("told=x", "client=y", hits=2)
    message.descriptors[1].limit.requests_per_unit = 7
    message.descriptors[1].limit.unit = 2
    async with rls(dynamic_metadata=True) as service:
        answer = await service.should_rate_limit(message)

    expected = RateLimitResponse()
    expected.dynamic_metadata.update(
        {
            "domain": "api",
            "descriptors": [
                {"entries": ["told=x"]},
                {"entries": ["client=y"], "limit": {"requestsPerUnit": 7, "unit": "MINUTE"}},
            ],
            "hitsAddend": 2,
            "team": "blue",
            "deep": {"a": 1},
        }
    )
    assert answer.dynamic_metadata == expected.dynamic_metadata


async def test_header_fields_are_added_if_configured() -> None:
    async with rls(grpc_headers="x") as service:
        answer = await service.should_rate_limit(request("client=x"))

    headers = {each.key: each.value for each in answer.response_headers_to_add}
    assert headers == {
        "x-ratelimit-limit": "3",
        "x-ratelimit-remaining": "2",
        "x-ratelimit-reset": "30",
    }


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"descriptors": [{"entries": [{"key": "a"}]}]}, "domain must not be empty"),
        ({"domain": "api"}, "descriptor list must not be empty"),
        (
            {"domain": "api", "descriptors": [{"entries": [{"key": "a"}], "limit": {}}]},
            "has no unit",
        ),
        ({"domain": "api", "descriptors": [{}] * 129}, "more than 128"),
    ],
)
async def test_an_invalid_request_is_refused(message: dict[str, object], error: str) -> None:
    async with rls() as service:
        with pytest.raises(BadRequest, match=error):
            await service.should_rate_limit(ParseDict(message, RateLimitRequest()))


async def test_json_requests_get_the_status_codes_of_envoys_service() -> None:
    entry = {"entries": [{"key": "client", "value": "x"}]}
    body = {"domain": "api", "descriptors": [entry], "hitsAddend": 3}
    refund = {"domain": "api", "descriptors": [{**entry, "isNegativeHits": True}], "hitsAddend": 4}
    async with api() as gateway:
        answers = [await post(gateway, "/json", each) for each in (body, body, refund)]
        invalid = [
            await post(gateway, "/json", each)
            for each in (
                b"",
                b"[]",
                b'{"domain":',
                {"domain": ""},
                {"nobody": 1},
                {"domain": "api"},
            )
        ]

    assert [each.status for each in answers] == [200, 429, 200]
    over = json.loads(answers[1].body)
    assert (over["overallCode"], over["statuses"][0]["code"]) == ("OVER_LIMIT", "OVER_LIMIT")
    assert ("retry-after", "30") in answers[1].headers
    assert json.loads(answers[2].body)["statuses"][0]["limitRemaining"] == 1
    assert {each.status for each in invalid} == {400}


@pytest.mark.parametrize("body", [b"-2.2e-28", b"7", b"null", b"[]", b'"text"', b"[[1]]"])
async def test_json_that_is_not_an_object_gets_400(body: bytes) -> None:
    async with api() as gateway:
        assert (await post(gateway, "/json", body)).status == 400
