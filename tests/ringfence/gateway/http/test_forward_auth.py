"""Forward authentication, as proxies use it."""

from typing import Any

import pytest

from ringfence.gateway.http.api import Api
from ringfence.gateway.http.http_types import UNREADABLE, Response
from tests.ringfence.gateway.gateway import api, ask, header, json_of


async def auth(
    gateway: Api, query: str = "", *, peer: str = "127.0.0.1", **headers: str
) -> Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(gateway, "GET", "/v1/auth" + query, headers=sent, peer=peer)


async def test_the_fourth_request_is_denied_with_retry_after() -> None:
    async with api() as gateway:
        answers = [await auth(gateway, x_forwarded_for="203.0.113.7") for _ in range(4)]

    assert [each.status for each in answers] == [200, 200, 200, 429]
    assert [header(each, "X-RateLimit-Remaining") for each in answers] == ["2", "1", "0", "0"]
    assert [header(each, "Retry-After") for each in answers] == [None, None, None, "30"]
    assert header(answers[3], "RateLimit") == '"client";r=0;t=30'
    assert json_of(answers[3])["type"].endswith("#quota-exceeded")


async def test_a_denial_is_403_for_proxies_without_429_support() -> None:
    async with api() as gateway:
        for _ in range(3):
            await auth(gateway)
        with_403 = await auth(gateway, "?deny_status=403")
        invalid = await auth(gateway, "?deny_status=200")
        other_query = await auth(gateway, "?b=1")

    assert (with_403.status, json_of(with_403)["status"]) == (403, 403)
    assert invalid.status == 400
    assert other_query.status == 429, "Caddy forwards the query of the client"


async def test_forwarded_addresses_left_of_an_untrusted_one_are_ignored() -> None:
    async with api() as gateway:
        answers = [
            await auth(gateway, x_forwarded_for=f"198.51.100.{number}, 203.0.113.7")
            for number in range(4)
        ]

    assert [each.status for each in answers] == [200, 200, 200, 429]


async def test_address_headers_of_an_untrusted_client_are_ignored() -> None:
    async with api(trusted_proxies=["10.0.0.0/8"]) as gateway:
        answers = [
            await auth(gateway, peer="203.0.113.7", x_forwarded_for=f"198.51.100.{number}")
            for number in range(4)
        ]

    assert answers[3].status == 429


async def test_only_the_configured_address_header_is_read() -> None:
    async with api(address_header="forwarded") as gateway:
        answers = [
            await auth(gateway, forwarded="for=203.0.113.7", x_forwarded_for=f"198.51.100.{number}")
            for number in range(4)
        ]

    assert answers[3].status == 429


async def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    async with api() as gateway:
        answers = [
            await auth(gateway, x_forwarded_for=f"2001:db8::{number}") for number in range(1, 5)
        ]

    assert [each.status for each in answers] == [200, 200, 200, 429]


async def test_descriptors_come_from_the_settings() -> None:
    async with api(auth=["path+client=ip", "client=header:x-api-key"]) as gateway:
        first = await auth(gateway, x_forwarded_uri="/a?x=1", x_forwarded_for="203.0.113.7")
        same = await auth(gateway, x_forwarded_uri="/a?x=2", x_forwarded_for="203.0.113.7")
        other = await auth(gateway, x_forwarded_uri="/b", x_forwarded_for="203.0.113.7")
        keyed = await auth(gateway, x_forwarded_uri="/c", x_api_key="k")

    remaining = [header(each, "X-RateLimit-Remaining") for each in (first, same, other, keyed)]
    assert remaining == ["1", "0", "1", "1"], (
        "the headers of `keyed` describe the stricter of two limits"
    )


async def test_the_host_is_that_of_the_original_request() -> None:
    async with api(auth=["client=host"]) as gateway:
        for number in range(4):
            forwarded = await auth(gateway, host=f"n{number}", x_forwarded_host="shop.example")
        direct = await auth(gateway, host="shop.example")
        other = await auth(gateway, host="n0")

    assert [each.status for each in (forwarded, direct, other)] == [429, 429, 200]


async def test_only_the_configured_path_header_is_read() -> None:
    async with api(auth=["path+client=ip"]) as gateway:
        answers = [
            await auth(gateway, x_forwarded_uri="/a", x_original_uri=f"/{number}")
            for number in range(3)
        ]

    assert answers[2].status == 429


async def test_a_request_that_has_none_of_the_descriptors_passes() -> None:
    async with api(auth=["client=header:x-api-key"]) as gateway:
        answer = await auth(gateway)

    assert (answer.status, answer.headers) == (200, [])


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        ({}, {"x_forwarded_method": "OPTIONS"}),
        ({"exempt_paths": ["/health"]}, {"x_forwarded_uri": "/health/live?x"}),
    ],
)
async def test_exempt_requests_are_not_counted(
    settings: dict[str, Any], headers: dict[str, str]
) -> None:
    async with api(**settings) as gateway:
        answers = [await auth(gateway, **headers) for _ in range(5)]

    assert {each.status for each in answers} == {200}


async def test_a_path_with_only_the_prefix_of_an_exempt_path_is_counted() -> None:
    async with api(exempt_paths=["/health"]) as gateway:
        answers = [await auth(gateway, x_forwarded_uri="/healthy") for _ in range(4)]

    assert answers[3].status == 429


SPELLINGS = [
    "/login",
    "/static/../login",
    "/static/%2e%2e/login",
    "/static%2f..%2flogin?x",
    "/%6cogin",
    "//login",
    "/x/../login#x",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_no_alternative_spelling_makes_a_path_exempt(spelling: str) -> None:
    async with api(exempt_paths=["/static"]) as gateway:
        answers = [await auth(gateway, x_forwarded_uri=spelling) for _ in range(4)]

    assert answers[3].status == 429


async def test_all_spellings_of_a_path_share_a_counter() -> None:
    async with api(auth=["path+client=ip"]) as gateway:
        answers = [await auth(gateway, x_forwarded_uri=spelling) for spelling in SPELLINGS]

    assert [each.status for each in answers] == [200, 200, 429, 429, 429, 429, 429]


async def test_an_unreadable_path_is_denied_and_never_counted_as_another_path() -> None:
    async with api() as gateway:
        answer = await auth(gateway, x_forwarded_uri=UNREADABLE)
        with_403 = await auth(gateway, "?deny_status=403", x_forwarded_uri=UNREADABLE)

    assert (answer.status, with_403.status) == (429, 403)
    assert "escape" in json_of(answer)["detail"]


async def test_exempt_paths_can_be_escaped_or_unescaped() -> None:
    async with api(exempt_paths=["/caf%C3%A9/", "/a b"]) as gateway:
        answers = [
            await auth(gateway, x_forwarded_uri=uri)
            for uri in ("/caf%c3%a9/x", "/a%20b", "/caf%c3%a9") * 2
        ]

    assert {each.status for each in answers} == {200}


async def test_header_fields_have_the_configured_style() -> None:
    async with api(headers="ietf") as gateway:
        fields = [name for name, _ in (await auth(gateway)).headers]

    assert fields == ["RateLimit-Policy", "RateLimit"]
