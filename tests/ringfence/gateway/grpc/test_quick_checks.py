"""Quick path of the gateway: it answers plain requests as the service does, on virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from trio.testing import MockClock

from ringfence.client.connect import links_of
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url
from ringfence.gateway.grpc import quick_checks
from ringfence.gateway.grpc.quick_checks import QuickChecks
from ringfence.gateway.grpc.rls import RateLimitService
from ringfence.gateway.process.worker import frame_interval, make_quick, make_rls, warm_up
from tests.node.cluster import NAMES, World, owned, world
from tests.ringfence.gateway.gateway import settings_of
from tests.ringfence.gateway.test_rls_counting import LIMITS, RULES, GoService, SentRequest

MINUTE = "{unit: minute, requests_per_unit: 4"
RULES_OF_ALL_ALGORITHMS = (
    RULES
    + "".join(
        f"  - key: {name}\n    rate_limit: {MINUTE}, algorithm: {name}}}\n"
        for name in ("token_bucket", "sliding_window", "concurrency")
    )
    + f"  - key: shadow\n    shadow_mode: true\n    rate_limit: {MINUTE}}}\n"
)
UNDECIDED = (
    RULES_OF_ALL_ALGORITHMS
    + f"  - key: strict\n    rate_limit: {MINUTE}, on_failure: deny}}\n"
    + f"  - key: trial\n    shadow_mode: true\n    rate_limit: {MINUTE}, on_failure: deny}}\n"
)
R = RateLimitResponse


class FakeCall:
    """Call that records its response; `resume` runs in a nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.check: Any = None
        self.answered = trio.Event()
        self.response = b""
        self.was_resumed = False
        self._nursery = nursery

    def answer(self, message: bytes) -> None:
        self.response = message
        self.answered.set()

    def resume(self, answer: Any) -> None:
        self.was_resumed = True
        self._nursery.start_soon(self._run, answer)

    async def _run(self, answer: Any) -> None:
        self.check = None
        self.answer(await answer())

    def fail(self, error: Exception) -> None:
        raise error


class Gateway:
    """Rate limit service with its quick path, on a client of a simulated cluster."""

    def __init__(
        self, limiter: Limiter, service: RateLimitService, quick: QuickChecks, nursery: trio.Nursery
    ) -> None:
        self.limiter = limiter
        self.service = service
        self.quick = quick
        self.left_to_service = 0
        self._nursery = nursery

    def begin(self, message: bytes) -> FakeCall | None:
        call = FakeCall(self._nursery)
        return call if self.quick.begin(message, call) else None

    async def ask(self, message: bytes) -> RateLimitResponse:
        call = self.begin(message)
        if call is None:
            self.left_to_service += 1
            return RateLimitResponse.FromString(await self.service.answer(message))
        await call.answered.wait()
        return RateLimitResponse.FromString(call.response)


@asynccontextmanager
async def gateway(here: World) -> AsyncIterator[Gateway]:
    settings = settings_of()
    links = links_of(
        parse_url("ringfence://a"), settings.deadline, frame_interval(settings.deadline)
    )
    async with (
        here.client("a", standby_after=settings.hedge_after, link=links) as limiter,
        trio.open_nursery() as nursery,
    ):
        await warm_up(limiter)
        service = make_rls(limiter, settings)
        cluster: Any = limiter._decider
        quick = make_quick(service, settings, cluster)
        assert quick is not None
        yield Gateway(limiter, service, quick, nursery)


def request_for(key: str, value: str, **fields: Any) -> bytes:
    request = RateLimitRequest(domain="api", **fields)
    request.descriptors.add().entries.add(key=key, value=value)
    written: bytes = request.SerializeToString()
    return written


async def test_plain_requests_count_as_the_go_service_does(autojump_clock: MockClock) -> None:
    random, go = Random(7), GoService()
    async with world(rules=RULES) as w, gateway(w) as gate:
        for _ in range(400):
            w.clock.time += random.randrange(2) * 10**9
            key, value = random.choice([*LIMITS]), random.choice("xyz")
            sent = SentRequest(random.choice([0, 0, 2]), [(key, value, None)])
            [(code, remaining)] = go.answer(sent, w.clock.time)
            response = await gate.ask(sent.message().SerializeToString())
            [status] = response.statuses
            if key != "many":  # The owner leases units of this key.
                assert (status.code, status.limit_remaining) == (code, remaining)
            assert response.overall_code == code

        assert w.total("overdrawn") > 50


@pytest.mark.parametrize("key", ["few", "none", "token_bucket", "sliding_window", "shadow"])
async def test_responses_of_the_quick_path_equal_those_of_the_service(
    autojump_clock: MockClock, key: str
) -> None:
    async with world(rules=RULES_OF_ALL_ALGORITHMS) as w, gateway(w) as gate:
        for _ in range(6):
            quick = await gate.ask(request_for(key, "x"))
            slow = RateLimitResponse.FromString(await gate.service.answer(request_for(key, "y")))
            assert quick == slow
        assert gate.left_to_service == 0


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        RateLimitRequest(domain="api").SerializeToString(),
        request_for("unknown", "x"),
        request_for("concurrency", "x"),
        SentRequest(0, [("few", "x", 1)]).message().SerializeToString(),
        SentRequest(0, [("few", "x", None), ("few", "y", None)]).message().SerializeToString(),
        request_for("few", "x") + b"\x12\x0a" + b"\x0a\x08\x0a\x03few\x12\x01y",
    ],
)
async def test_other_requests_are_left_to_the_service(
    autojump_clock: MockClock, message: bytes
) -> None:
    async with world(rules=RULES_OF_ALL_ALGORITHMS) as w, gateway(w) as gate:
        assert gate.begin(message) is None
        assert gate.begin(message) is None


async def test_a_refund_is_left_to_the_service(autojump_clock: MockClock) -> None:
    request = RateLimitRequest.FromString(request_for("few", "x"))
    [descriptor] = request.descriptors
    message = descriptor.SerializeToString() + b"\x20\x01"  # Field 4, `is_negative_hits`.
    written = b"\x0a\x03api\x12" + bytes((len(message),)) + message
    async with world(rules=RULES) as w, gateway(w) as gate:
        assert gate.begin(written) is None


async def test_a_cancelled_call_spends_nothing(autojump_clock: MockClock) -> None:
    async with world(rules=RULES) as w, gateway(w) as gate:
        for _ in range(10):
            call = gate.begin(request_for("few", "x"))
            assert call is not None
            call.check.cancel()
            await trio.sleep(1)
            assert not call.answered.is_set()
        response = await gate.ask(request_for("few", "x"))
        assert response.statuses[0].limit_remaining == LIMITS["few"] - 1


async def test_the_standby_decides_checks_of_a_crashed_owner(autojump_clock: MockClock) -> None:
    async with world(rules=RULES) as w, gateway(w) as gate:
        [(_, value)] = owned(w.rules, "few", "b").items()
        for _ in range(3):
            await gate.ask(request_for("few", value))
        await trio.sleep(1)
        await w.crash("b")
        call = gate.begin(request_for("few", value))
        assert call is not None
        await call.answered.wait()
        assert call.was_resumed
        codes = [(await gate.ask(request_for("few", value))).overall_code for _ in range(2)]
        assert codes == [RateLimitResponse.OVER_LIMIT] * 2


async def test_an_undecided_response_has_no_limit_from_which_envoy_makes_headers(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=UNDECIDED) as w, gateway(w) as gate:
        decided = await gate.ask(request_for("few", "x"))
        for name in NAMES:
            await w.crash(name)

        expected = {"few": R.OK, "strict": R.OVER_LIMIT, "trial": R.OK}
        calls = {key: gate.begin(request_for(key, "x")) for key in expected}
        for key, code in expected.items():
            call = calls[key]
            assert call is not None
            await call.answered.wait()
            for response in (call.response, await gate.service.answer(request_for(key, "x"))):
                answer = R.FromString(response)
                assert [*answer.statuses] == [R.DescriptorStatus(code=code)]
    assert decided.statuses[0].HasField("current_limit")


async def test_the_caches_are_bounded_and_evict_old_messages_first(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_checks, "_MAX_RECENT", 8)
    monkeypatch.setattr(quick_checks, "_MAX_RESPONSES", 4)
    async with world(rules=RULES) as w, gateway(w) as gate:
        for number in range(40):
            await gate.ask(request_for("some", f"{number}"))
            await gate.ask(request_for("some", "often", hits_addend=number % 3))
            await gate.ask(request_for("unknown", f"{number}"))
            await gate.ask(request_for("some", "x" * 200))
            quick = gate.quick
            assert len(quick._recent) <= 8
            assert len(quick._older) <= 8
            assert len(quick._responses) <= 4
            known = quick._recent | quick._older
            assert request_for("some", "often", hits_addend=number % 3) in known
            assert request_for("some", "x" * 200) not in known


async def test_metrics_count_results_of_the_quick_path(autojump_clock: MockClock) -> None:
    async with world(rules=RULES) as w, gateway(w) as gate:
        for _ in range(LIMITS["few"] + 2):
            await gate.ask(request_for("few", "x"))
        counters = gate.service.counters
        assert counters["decided_allowed_owner"] == LIMITS["few"]
        assert counters["decided_denied_owner"] == 2
