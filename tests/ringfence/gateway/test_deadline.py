"""Envoy gets an answer before its time-out when members fail, on virtual time.

Once with the settings that ship, where the example tells Envoy to wait 0.3 s, and once with those
for an Envoy that waits the 20 ms of its own default.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse

from ringfence.client.connect import links_of
from ringfence.client.url import parse_url
from ringfence.gateway.grpc.rls import RateLimitService
from ringfence.gateway.process.worker import make_rls, max_gather, warm_up
from ringfence.http.headers import OUTAGE_HEADER
from tests.node.cluster import NAMES, World, owned, world
from tests.ringfence.gateway.gateway import settings_of

SETUPS = [({}, 0.3, 0.0), ({"deadline": 0.018, "hedge_after": 0.007}, 0.02, 0.15)]
"""Settings of the gateway, the `timeout` of Envoy's filter, and how long the rules' policy answers
after a death. A standby decides once the owner has been silent for 0.1 s, so a deadline of a few
milliseconds is over before that: a shorter silence would be no proof that the owner is away."""
REPLICATED = 0.3
"""By then a standby has a copy of what was counted."""
OK, OVER = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT


@asynccontextmanager
async def service(here: World, options: dict[str, float]) -> AsyncIterator[RateLimitService]:
    settings = settings_of(grpc_headers="ietf", **options)
    links = links_of(parse_url("ringfence://a"), settings.deadline, max_gather(settings.deadline))
    async with here.client(standby_after=settings.hedge_after, link=links) as limiter:
        await warm_up(limiter)
        yield make_rls(limiter, settings)


def about(key: str, value: str) -> RateLimitRequest:
    request = RateLimitRequest(domain="api")
    request.descriptors.add().entries.add(key=key, value=value)
    return request


async def in_time(
    service: RateLimitService, request: RateLimitRequest, within: float
) -> RateLimitResponse:
    started = trio.current_time()
    answer = await service.should_rate_limit(request)
    assert trio.current_time() - started < within
    return answer


async def ask_until(
    instant: float, service: RateLimitService, request: RateLimitRequest, within: float
) -> None:
    """Ask on until an instant; each answer is in time."""
    while trio.current_time() < instant:
        await in_time(service, request, within)
        await trio.sleep(0.001)


@pytest.mark.parametrize(("options", "within", "by_policy"), SETUPS)
async def test_after_a_crash_answers_meet_the_deadline_and_the_limit_holds(
    autojump_clock, options, within, by_policy
) -> None:
    for dead in NAMES:
        async with world() as here, service(here, options) as rls:
            [(_, client)] = owned(here.rules, "client", "a").items()
            request = about("client", client)
            for _ in range(3):
                await in_time(rls, request, within)
            await trio.sleep(REPLICATED)

            await here.crash(dead)
            if dead == "a" and by_policy:
                await ask_until(trio.current_time() + by_policy, rls, request, within)
                codes = [(await in_time(rls, request, within)).overall_code for _ in range(5)]
                assert codes[-2:] == [OVER, OVER], "5 a minute"
                continue

            codes = [(await in_time(rls, request, within)).overall_code for _ in range(4)]
            assert codes == [OK, OK, OVER, OVER], f"5 a minute, with {dead} dead"


@pytest.mark.parametrize(("options", "within", "by_policy"), SETUPS)
async def test_many_concurrent_requests_are_answered_in_time(
    autojump_clock, options, within, by_policy
) -> None:
    async with world() as here, service(here, options) as rls:
        [(_, client)] = owned(here.rules, "client", "a").items()
        await in_time(rls, about("client", client), within)
        await trio.sleep(REPLICATED)
        await here.crash("a")
        if by_policy:  # Another key of the same owner, so that this one's budget is whole.
            [(_, other)] = owned(here.rules, "client", "a", number=1).items()
            instant = trio.current_time() + by_policy
            await ask_until(instant, rls, about("client", other), within)
        codes: list[int] = []

        async def ask() -> None:
            codes.append((await in_time(rls, about("client", client), within)).overall_code)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)

        assert codes.count(OK) == 4


@pytest.mark.parametrize(("options", "within", "_by_policy"), SETUPS)
async def test_without_members_the_failure_policy_answers_in_time(
    autojump_clock, options, within, _by_policy
) -> None:
    async with world() as here, service(here, options) as rls:
        await in_time(rls, about("client", "x"), within)
        for name in NAMES:
            await here.crash(name)

        open_, strict = [
            await in_time(rls, about(key, "x"), within) for key in ("client", "strict")
        ]

    assert (open_.overall_code, strict.overall_code) == (OK, OVER)
    headers = {each.key: each.value for each in strict.response_headers_to_add}
    assert headers == {"retry-after": "1", OUTAGE_HEADER.lower(): "deny"}
