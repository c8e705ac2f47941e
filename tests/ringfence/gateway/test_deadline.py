"""Deadlines of the gateway while members fail, on virtual time.

Envoy gets each answer before its time-out. The tests run with the default settings and the time-out
of the example, 0.3 s. They also run with settings for Envoy's own default time-out, 20 ms.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse

import ringfence
from ringfence.client.connect import links_of
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.requests.dispatcher import Dispatcher
from ringfence.client.requests.targets import Target
from ringfence.client.url import parse_url
from ringfence.gateway.grpc.rls import RateLimitService
from ringfence.gateway.process.worker import frame_interval, make_api, make_rls, warm_up
from ringfence.http.headers import OUTAGE_HEADER
from ringfence.rules import Descriptor
from ringfence.wire import Op
from tests.node.cluster import NAMES, World, owned, world
from tests.ringfence.gateway.gateway import RULES, post, settings_of

SETUPS = [({}, 0.3, 0.0), ({"deadline": 0.018, "hedge_after": 0.007}, 0.02, 0.15)]
"""Settings of the gateway, the `timeout` of Envoy's filter, and how long the failure policy answers
after a crash. A standby decides after the owner has been silent for 0.1 s. A deadline of a few
milliseconds ends before that: a shorter silence does not prove that the owner is unreachable."""
REPLICATED = 0.3
"""Seconds until a standby has a replica of the counts."""
OK, OVER = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT


@asynccontextmanager
async def service(here: World, options: dict[str, float]) -> AsyncIterator[RateLimitService]:
    settings = settings_of(grpc_headers="ietf", **options)
    links = links_of(
        parse_url("ringfence://a"), settings.deadline, frame_interval(settings.deadline)
    )
    async with here.client(standby_after=settings.hedge_after, link=links) as limiter:
        await warm_up(limiter)
        yield make_rls(limiter, settings)


def request_for(key: str, value: str) -> RateLimitRequest:
    request = RateLimitRequest(domain="api")
    request.descriptors.add().entries.add(key=key, value=value)
    return request


async def answer_in_time(
    service: RateLimitService, request: RateLimitRequest, within: float
) -> RateLimitResponse:
    started = trio.current_time()
    answer = await service.should_rate_limit(request)
    assert trio.current_time() - started < within
    return answer


async def send_until(
    instant: float, service: RateLimitService, request: RateLimitRequest, within: float
) -> None:
    """Send requests until an instant; check that each answer is in time."""
    while trio.current_time() < instant:
        await answer_in_time(service, request, within)
        await trio.sleep(0.001)


@pytest.mark.parametrize(("options", "within", "by_policy"), SETUPS)
async def test_after_a_crash_responses_meet_the_deadline_and_the_limit_holds(
    autojump_clock, options, within, by_policy
) -> None:
    for dead in NAMES:
        async with world() as here, service(here, options) as rls:
            [(_, client)] = owned(here.rules, "client", "a").items()
            request = request_for("client", client)
            for _ in range(3):
                await answer_in_time(rls, request, within)
            await trio.sleep(REPLICATED)

            await here.crash(dead)
            if dead == "a" and by_policy:
                await send_until(trio.current_time() + by_policy, rls, request, within)
                codes = [
                    (await answer_in_time(rls, request, within)).overall_code for _ in range(5)
                ]
                assert codes[-2:] == [OVER, OVER], "the limit is 5/minute"
                continue

            codes = [(await answer_in_time(rls, request, within)).overall_code for _ in range(4)]
            assert codes == [OK, OK, OVER, OVER], f"the limit is 5/minute; {dead} has crashed"


@pytest.mark.parametrize(("options", "within", "by_policy"), SETUPS)
async def test_many_concurrent_requests_are_answered_in_time(
    autojump_clock, options, within, by_policy
) -> None:
    async with world() as here, service(here, options) as rls:
        [(_, client)] = owned(here.rules, "client", "a").items()
        await answer_in_time(rls, request_for("client", client), within)
        await trio.sleep(REPLICATED)
        await here.crash("a")
        if by_policy:  # Use another key of the same owner, so that this key's budget stays full.
            [(_, other)] = owned(here.rules, "client", "a", number=1).items()
            instant = trio.current_time() + by_policy
            await send_until(instant, rls, request_for("client", other), within)
        codes: list[int] = []

        async def ask() -> None:
            codes.append(
                (await answer_in_time(rls, request_for("client", client), within)).overall_code
            )

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)

        assert codes.count(OK) == 4


@pytest.mark.parametrize(("options", "within", "_by_policy"), SETUPS)
async def test_without_members_the_failure_policy_answers_in_time(
    autojump_clock, options, within, _by_policy
) -> None:
    async with world() as here, service(here, options) as rls:
        await answer_in_time(rls, request_for("client", "x"), within)
        for name in NAMES:
            await here.crash(name)

        open_, strict = [
            await answer_in_time(rls, request_for(key, "x"), within) for key in ("client", "strict")
        ]

    assert (open_.overall_code, strict.overall_code) == (OK, OVER)
    headers = {each.key: each.value for each in strict.response_headers_to_add}
    assert headers == {"retry-after": "1", OUTAGE_HEADER.lower(): "deny"}


async def test_refunds_peeks_and_resets_have_the_deadline_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []
    ask = Dispatcher.ask

    async def asked(
        self: Dispatcher,
        op: Op,
        targets: list[Target],
        costs: list[int],
        timeout: float | None,  # noqa: ASYNC109
        **more: int,
    ) -> list[Decision]:
        waits.append(timeout)
        return await ask(self, op, targets, costs, timeout, **more)

    check_many = Limiter.check_many

    async def checked(
        self: Limiter,
        domain: str,
        requests: list[Descriptor],
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> list[Decision]:
        waits.append(timeout)
        return await check_many(self, domain, requests, timeout=timeout)

    monkeypatch.setattr(Dispatcher, "ask", asked)
    monkeypatch.setattr(Limiter, "check_many", checked)
    client = {"domain": "api", "descriptors": [{"client": "x"}]}
    by_limit = {"limit": "5/minute", "key": ["x"]}
    refund = request_for("client", "x")
    refund.descriptors[0].hits_addend.value = 1
    refund.descriptors.add().entries.add(key="client", value="y")
    settings = settings_of(deadline=0.5)
    async with ringfence.local(RULES) as limiter:
        api = make_api(limiter, settings)
        for path in ("/v1/refund", "/v1/reset"):
            assert (await post(api, path, client)).status == 200
        for path in ("/v1/peek", "/v1/refund", "/v1/reset"):
            assert (await post(api, path, by_limit)).status == 200
        await make_rls(limiter, settings).should_rate_limit(refund, [True, False])

    assert waits[:5] == [0.5] * 5
    refunded, hit, *_ = waits[5:]
    assert refunded is not None
    assert hit is not None
    assert 0 < hit < refunded <= 0.5
