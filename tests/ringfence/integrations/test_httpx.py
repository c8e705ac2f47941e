import time

import anyio
import httpx
import pytest
import trio

import ringfence
from ringfence.client.blocking.blocking_limiter import local
from ringfence.errors import ConfigError
from ringfence.integrations._core.over_limit import OverLimit
from ringfence.integrations.httpx import AsyncWaitingTransport, TurnTooLate, WaitingTransport
from ringfence.rules import RuleSet

RULES = {
    "domain": "out",
    "descriptors": [
        {
            "key": "path",
            "rate_limit": {"unit": "hour", "requests_per_unit": 1},
        },
    ],
}
BUCKET = "1/s token_bucket"


class TrioClock:
    def now(self):
        return round(trio.current_time() * 1e9)


class Upstream:
    """Upstream server that returns the given responses in turn, then 200."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.paths = []

    def __call__(self, request):
        self.paths.append(request.url.path)
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        return httpx.Response(status, headers=headers, text="hello")


def client_of(limiter, upstream, *limit, **options):
    return httpx.AsyncClient(
        base_url="http://up.test",
        transport=AsyncWaitingTransport(
            limiter, *limit, **{"transport": httpx.MockTransport(upstream), **options}
        ),
    )


class NonReadingTransport(httpx.AsyncBaseTransport):
    """Transport that does not read the request body; `MockTransport` keeps the body as bytes."""

    def __init__(self, upstream):
        self.upstream = upstream

    async def handle_async_request(self, request):
        return self.upstream(request)


class FakeSleep:
    """Fake clock of the blocking transport, which a sleep advances without waiting."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        self.slept = []
        monkeypatch.setattr("ringfence.integrations._core.clock.now", lambda: self.now)
        monkeypatch.setattr("ringfence.integrations._core.clock.sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds
        if seconds:
            self.slept.append(seconds)


async def test_requests_wait_for_their_turn(autojump_clock):
    upstream = Upstream()
    async with (
        ringfence.local(RuleSet(), clock=TrioClock()) as limiter,
        client_of(limiter, upstream, BUCKET) as client,
    ):
        began = trio.current_time()
        for _ in range(3):
            assert (await client.get("/a")).text == "hello"

        assert trio.current_time() - began == pytest.approx(2)
        other = await client.get("http://other.test/a")
        assert other.status_code == 200
        assert trio.current_time() - began == pytest.approx(2), "each host has its own budget"


async def test_a_request_whose_turn_comes_too_late_is_not_sent(autojump_clock):
    upstream = Upstream()
    async with (
        ringfence.local(RuleSet(), clock=TrioClock()) as limiter,
        client_of(limiter, upstream, BUCKET, max_wait=0.5) as client,
    ):
        await client.get("/a")
        with pytest.raises(
            TurnTooLate,
            match=r"^GET http://up.test/b is over its limit of 1; retry in 1 s",
        ) as caught:
            await client.get("/b", params={"secret": "x"})

        assert upstream.paths == ["/a"]
        assert caught.value.request.url.path == "/b"
        assert isinstance(caught.value, OverLimit | httpx.TransportError)
        assert caught.value.retry_after == pytest.approx(1)


async def test_rules_can_define_the_limit(autojump_clock):
    async with ringfence.local(RULES, clock=TrioClock()) as limiter:
        options = {"domain": "out", "descriptors": lambda request: {"path": request.url.path}}
        async with client_of(limiter, Upstream(), **options, max_wait=1) as client:
            await client.get("/a")
            await client.get("/b")
            with pytest.raises(TurnTooLate):
                await client.get("/a")


async def test_a_429_or_503_response_is_retried_after_its_wait_if_configured(autojump_clock):
    upstream = Upstream((429, {"Retry-After": "7"}), (503, {"Retry-After": "3"}))
    async with (
        ringfence.local(RuleSet(), clock=TrioClock()) as limiter,
        client_of(limiter, upstream, "100/s", respect_retry_after=True) as client,
    ):
        began = trio.current_time()
        answer = await client.post("/a", json={"x": 1})

        assert answer.status_code == 200
        assert trio.current_time() - began == pytest.approx(10)
        assert upstream.paths == ["/a"] * 3


async def test_other_requests_with_the_same_key_wait_too(autojump_clock):
    upstream = Upstream((429, {"Retry-After": "7"}))
    async with ringfence.local(RuleSet(), clock=TrioClock()) as limiter:
        options = {
            "respect_retry_after": True,
            "max_wait": 10,
            "transport": NonReadingTransport(upstream),
        }
        async with client_of(limiter, upstream, "100/s", **options) as client:
            began = trio.current_time()
            streamed = await client.post("/a", content=chunks())
            assert streamed.status_code == 429, "its body cannot be sent twice"
            assert trio.current_time() == began

            await client.get("/b")
            assert trio.current_time() - began == pytest.approx(7)


async def chunks():
    yield b"once"


@pytest.mark.parametrize(
    "answer",
    [
        (429, {}),
        (429, {"Retry-After": "x"}),
        (429, {"Retry-After": "99"}),
        (404, {"Retry-After": "1"}),
    ],
)
async def test_responses_without_an_acceptable_wait_are_returned_unchanged(answer, autojump_clock):
    upstream = Upstream(answer)
    async with (
        ringfence.local(RuleSet(), clock=TrioClock()) as limiter,
        client_of(limiter, upstream, "100/s", respect_retry_after=True) as client,
    ):
        began = trio.current_time()
        assert (await client.get("/a")).status_code == answer[0]
        assert trio.current_time() == began
        assert len(upstream.paths) == 1


async def test_nothing_is_sent_in_a_pause_that_is_longer_than_a_request_waits(autojump_clock):
    upstream = Upstream((429, {"Retry-After": "60"}))
    async with (
        ringfence.local(RuleSet(), clock=TrioClock()) as limiter,
        client_of(limiter, upstream, "100/s", max_wait=1, respect_retry_after=True) as client,
    ):
        assert (await client.get("/a")).status_code == 429
        with pytest.raises(
            TurnTooLate, match=r"^GET http://up.test/b is not allowed now; retry in 60 s"
        ) as caught:
            await client.get("/b")
        assert caught.value.retry_after == 60

        await trio.sleep(59.5)
        assert (await client.get("/c")).status_code == 200
    assert upstream.paths == ["/a", "/c"]


async def test_without_a_pause_a_request_that_may_not_wait_is_sent():
    async with (
        ringfence.local(RuleSet()) as limiter,
        client_of(limiter, Upstream(), "9/s", max_wait=0, respect_retry_after=True) as client,
    ):
        assert (await client.get("/a")).status_code == 200


async def test_upstream_refusals_are_returned_unless_waiting_is_configured(autojump_clock):
    upstream = Upstream((429, {"Retry-After": "1"}))
    async with (
        ringfence.local(RuleSet(), clock=TrioClock()) as limiter,
        client_of(limiter, upstream, "100/s") as client,
    ):
        assert (await client.get("/a")).status_code == 429


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_limiter_serves_an_async_client_in_any_loop(backend):
    upstream = Upstream()

    async def get_twice():
        async with client_of(limiter, upstream, "1/hour", max_wait=0) as client:
            await client.get("/a")
            with pytest.raises(TurnTooLate):
                await client.get("/a")

    with local(RuleSet()) as limiter:
        anyio.run(get_twice, backend=backend)


def test_a_blocking_client_also_waits_after_a_429(monkeypatch):
    fake_sleep, upstream = FakeSleep(monkeypatch), Upstream((429, {"Retry-After": "7"}))
    with local(RuleSet()) as limiter:
        transport = WaitingTransport(
            limiter,
            "2/hour token_bucket",  # Not a window, which may end during the test.
            respect_retry_after=True,
            transport=httpx.MockTransport(upstream),
            key=lambda request: "all",
        )
        with httpx.Client(transport=transport) as client:
            assert client.get("http://up.test/a").status_code == 200
            assert fake_sleep.slept == [7]
            with pytest.raises(TurnTooLate):
                client.get("http://other.test/a")


def test_a_blocking_client_sends_nothing_in_a_long_pause(monkeypatch):
    fake_sleep, upstream = FakeSleep(monkeypatch), Upstream((429, {"Retry-After": "60"}))
    with local(RuleSet()) as limiter:
        transport = WaitingTransport(
            limiter,
            "9/hour token_bucket",
            max_wait=1,
            respect_retry_after=True,
            transport=httpx.MockTransport(upstream),
        )
        with httpx.Client(transport=transport) as client:
            assert client.get("http://up.test/a").status_code == 429
            with pytest.raises(TurnTooLate):
                client.get("http://up.test/b")

    assert (fake_sleep.slept, upstream.paths) == ([], ["/a"])


def test_a_blocking_client_waits_for_its_turn_in_real_time():
    with (
        local(RuleSet()) as limiter,
        httpx.Client(
            transport=WaitingTransport(
                limiter, "10/s token_bucket burst 1", transport=httpx.MockTransport(Upstream())
            )
        ) as client,
    ):
        began = time.monotonic()
        for _ in range(3):
            client.get("http://up.test/a")

        assert time.monotonic() - began >= 0.19


@pytest.mark.parametrize("kind", [WaitingTransport, AsyncWaitingTransport])
def test_invalid_settings_are_reported_at_construction(kind):
    with local(RuleSet()) as limiter:
        with pytest.raises(ConfigError, match="give either a limit"):
            kind(limiter)
        with pytest.raises(ConfigError, match="cannot be a concurrency limit, got '2 concurrent'"):
            kind(limiter, "2 concurrent")
        with pytest.raises(ConfigError, match="must be a duration"):
            kind(limiter, "1/s", max_wait=-1)


async def test_the_transport_of_threads_refuses_an_async_limiter():
    async with ringfence.local(RuleSet()) as limiter:
        with pytest.raises(ConfigError, match="AsyncWaitingTransport with"):
            WaitingTransport(limiter, "1/s")


SLOT_RULES = {
    "domain": "out",
    "descriptors": [
        {
            "key": "job",
            "rate_limit": {"algorithm": "concurrency", "requests_per_unit": 2, "unit": "minute"},
        },
    ],
}


def test_a_rule_with_a_concurrency_limit_is_an_error_and_leaves_no_slot():
    upstream = Upstream()
    with local(SLOT_RULES) as limiter:
        options = {"domain": "out", "descriptors": lambda request: {"job": "a"}}
        transport = WaitingTransport(limiter, transport=httpx.MockTransport(upstream), **options)
        with httpx.Client(base_url="http://up.test", transport=transport) as client:
            for _ in range(3):
                with pytest.raises(ConfigError, match="must match no concurrency limit of domain"):
                    client.get("/")

        async def ask():
            async with client_of(limiter, upstream, **options) as client:
                with pytest.raises(ConfigError, match="must match no concurrency limit of domain"):
                    await client.get("/")

        anyio.run(ask)
        assert limiter.peek("out", {"job": "a"}).remaining == 2
    assert upstream.paths == []


@pytest.mark.parametrize("kind", [WaitingTransport, AsyncWaitingTransport])
def test_invalid_arguments_are_reported_when_a_transport_is_created(kind):
    with local(RULES) as limiter:
        with pytest.raises(ConfigError, match=r"limiter must be one of .*got 'ringfence://up'"):
            kind("ringfence://up", "5/s")
        with pytest.raises(ConfigError, match="key must be a function of the request, got 'host'"):
            kind(limiter, "5/s", key="host")
        with pytest.raises(ConfigError, match=r"got \{'job': 'a'\}; write lambda request: \{'job'"):
            kind(limiter, domain="out", descriptors={"job": "a"})
