"""Envoy waits 20 ms for an answer: it has one by then whoever is dead. On virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse

from ringfence.gateway.rls import RateLimitService
from ringfence.gateway.worker import make_rls, warm_up
from ringfence.http.headers import OUTAGE_HEADER
from tests.gateway.gateway import settings_of
from tests.node.cluster import NAMES, World, owned, world

ENVOYS_PATIENCE = 0.02
REPLICATED = 0.3
"""By then a standby has a copy of what was counted."""
OK, OVER = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT


@asynccontextmanager
async def service(here: World) -> AsyncIterator[RateLimitService]:
    settings = settings_of(grpc_headers="ietf")
    left = settings.deadline - settings.patience
    async with here.client(standby_after=settings.patience, told_timeout=left) as limiter:
        await warm_up(limiter)
        yield make_rls(limiter, settings)


def about(key: str, value: str) -> RateLimitRequest:
    request = RateLimitRequest(domain="api")
    request.descriptors.add().entries.add(key=key, value=value)
    return request


async def in_time(service: RateLimitService, request: RateLimitRequest) -> RateLimitResponse:
    begun = trio.current_time()
    answer = await service.should_rate_limit(request)
    assert trio.current_time() - begun < ENVOYS_PATIENCE
    return answer


async def test_whoever_dies_the_answer_comes_in_time_and_the_limit_holds(autojump_clock) -> None:
    for dead in NAMES:
        async with world() as here, service(here) as rls:
            [(_, client)] = owned(here.rules, "client", "a").items()
            request = about("client", client)
            for _ in range(3):
                await in_time(rls, request)
            await trio.sleep(REPLICATED)

            await here.crash(dead)

            codes = [(await in_time(rls, request)).overall_code for _ in range(4)]
            assert codes == [OK, OK, OVER, OVER], f"5 a minute, with {dead} dead"


async def test_many_at_once_are_answered_in_time_too(autojump_clock) -> None:
    async with world() as here, service(here) as rls:
        [(_, client)] = owned(here.rules, "client", "a").items()
        await in_time(rls, about("client", client))
        await trio.sleep(REPLICATED)
        await here.crash("a")
        codes: list[int] = []

        async def ask() -> None:
            codes.append((await in_time(rls, about("client", client))).overall_code)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)

        assert codes.count(OK) == 4


async def test_with_nobody_left_the_rules_policy_answers_in_time_and_says_so(
    autojump_clock,
) -> None:
    async with world() as here, service(here) as rls:
        await in_time(rls, about("client", "x"))
        for name in NAMES:
            await here.crash(name)

        open_, strict = [await in_time(rls, about(key, "x")) for key in ("client", "strict")]

    assert (open_.overall_code, strict.overall_code) == (OK, OVER)
    headers = {each.key: each.value for each in strict.response_headers_to_add}
    assert headers == {"retry-after": "1", OUTAGE_HEADER.lower(): "deny"}
