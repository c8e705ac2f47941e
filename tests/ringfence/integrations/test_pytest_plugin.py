import math
import subprocess
import sys
import time
import tomllib
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path

import anyio
import httpx
import pytest
import trio
from limits import parse
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

import ringfence
import ringfence.blocking
import ringfence.integrations.limits
from ringfence.integrations.httpx import AsyncWaitingTransport, WaitingTransport
from ringfence.integrations.testing import FakeCluster
from ringfence.rules.loading.mapping import load_mapping

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
PLUGIN = "ringfence.integrations.pytest_plugin"
RULES = {
    "domain": "api",
    "descriptors": [{"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 2}}],
}


@pytest.fixture
def cluster():
    with FakeCluster(RULES).installed() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def imported_modules():
    """Import all modules of a check, because `run` forgets modules that were not imported before.

    Later tests would import them again, with other classes.
    """
    with (
        FakeCluster(RULES).installed(),
        ringfence.blocking.connect("ringfence://prod:7101") as limiter,
    ):
        limiter.check("api", {"user": "a"})


def run(pytester, *flags):
    """Run the tests of `pytester`; load the plug-in unless it is installed."""
    installed = entry_points(group="pytest11", name="ringfence")
    return pytester.runpytest_inprocess(*flags, *([] if installed else ["-p", PLUGIN]))


def test_tests_of_an_application_reach_the_fake_cluster_at_any_address(pytester):
    pytester.makeconftest(
        f"""
        import pytest

        @pytest.fixture
        def ringfence_rules():
            return {RULES!r}
        """
    )
    pytester.makepyfile(
        """
        import ringfence.blocking

        def app(user):
            with ringfence.blocking.connect("ringfence://prod:7101") as limiter:
                return limiter.check("api", {"user": user}).allowed

        def test_time(ringfence_cluster, ringfence_clock):
            assert [app("a"), app("a"), app("a")] == [True, True, False]
            ringfence_clock.advance(120)
            assert app("a")

        def test_every_test_starts_with_empty_counters(ringfence_cluster, ringfence_limiter):
            assert ringfence_limiter.peek("api", {"user": "a"}).remaining == 2
            assert app("a")
            assert ringfence_limiter.peek("api", {"user": "a"}).remaining == 1
        """
    )

    run(pytester, "-q").assert_outcomes(passed=2)


def test_without_rules_there_are_only_ad_hoc_limits(pytester):
    pytester.makepyfile(
        """
        def test_none(ringfence_limiter):
            assert ringfence_limiter.check("api", {"user": "a"}).limit is None
            assert not [ringfence_limiter.check_limit("1/s", "a") for _ in range(2)][1]
        """
    )

    run(pytester, "-q").assert_outcomes(passed=1)


def test_the_plug_in_is_registered_with_pytest():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert project["entry-points"]["pytest11"] == {"ringfence": PLUGIN}


def test_loading_the_plug_in_does_not_import_dependencies_of_its_fixtures():
    program = f"import sys, {PLUGIN}; print('ringfence.integrations.testing' in sys.modules)"

    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "False"


async def test_all_limiters_of_a_fake_cluster_share_counters(cluster):
    async with ringfence.connect() as limiter:
        assert await limiter.check("api", {"user": "a"})
        assert cluster.limiter.check("api", {"user": "a"})
        assert not await limiter.check("api", {"user": "a"})


async def test_a_client_can_send_its_own_rules_with_checks(cluster):
    raised = load_mapping(
        {
            "domain": "api",
            "descriptors": [
                {"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 9}}
            ],
        }
    ).rules
    async with ringfence.connect(rules=raised) as limiter:
        assert (await limiter.check("api", {"user": "a"})).remaining == 8
    assert cluster.limiter.peek("api", {"user": "a"}).remaining == 1


def test_a_reset_removes_all_counters_and_keeps_the_time(cluster):
    before = cluster.clock.now()
    cluster.limiter.check("api", {"user": "a"}, 2)

    cluster.reset()

    assert cluster.limiter.peek("api", {"user": "a"}).remaining == 2
    assert cluster.clock.now() == before


def test_a_cluster_that_is_off_allows_requests_without_counting_them(cluster):
    cluster.is_off = True
    decisions = [cluster.limiter.check("api", {"user": "a"}) for _ in range(3)]
    assert [(each.allowed, each.remaining) for each in decisions] == [(True, 2)] * 3
    assert cluster.limiter.check_limit("1/s", "a", cost=7).remaining == 1

    cluster.is_off = False
    assert cluster.limiter.peek("api", {"user": "a"}).remaining == 2


async def test_waiting_advances_the_fake_clock_without_real_time(cluster):
    began, fake_began = trio.current_time(), cluster.clock.now()
    async with ringfence.connect("ringfence://prod") as limiter:
        for _ in range(3):
            assert await limiter.acquire_limit("1/hour token_bucket", "a", max_wait=4000)

    assert cluster.clock.now() - fake_began == 7200 * 10**9
    assert trio.current_time() - began < 60


def refusing_once():
    answers = [httpx.Response(429, headers={"Retry-After": "25"}), httpx.Response(200)]
    return httpx.MockTransport(lambda request: answers.pop(0))


def test_waiting_for_retry_after_advances_the_fake_clock(cluster):
    began, fake_began = time.monotonic(), cluster.clock.now()
    with ringfence.blocking.connect("ringfence://prod") as limiter:
        transport = WaitingTransport(
            limiter, "9/hour", respect_retry_after=True, transport=refusing_once()
        )
        with httpx.Client(transport=transport) as client:
            assert client.get("http://up.test/").status_code == 200

    assert cluster.clock.now() - fake_began == pytest.approx(25 * 10**9, abs=10**4)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_waiting_for_retry_after_advances_the_fake_clock_in_any_event_loop(cluster, backend):
    async def ask():
        async with ringfence.connect("ringfence://prod") as limiter:
            transport = AsyncWaitingTransport(
                limiter, "9/hour", respect_retry_after=True, transport=refusing_once()
            )
            async with httpx.AsyncClient(transport=transport) as client:
                return (await client.get("http://up.test/")).status_code

    began, fake_began = time.monotonic(), cluster.clock.now()
    assert anyio.run(ask, backend=backend) == 200
    assert cluster.clock.now() - fake_began == pytest.approx(25 * 10**9, abs=10**4)
    assert time.monotonic() - began < 20


async def test_a_partly_denied_request_is_refunded(cluster):
    shadowed = {
        "domain": "api",
        "descriptors": [
            {"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 0}},
            {
                "key": "all",
                "shadow_mode": True,
                "rate_limit": {"unit": "minute", "requests_per_unit": 9},
            },
        ],
    }
    with FakeCluster(shadowed).installed() as other:
        assert not other.limiter.check("api", [{"user": "a"}, {"all": "x"}])
        assert other.limiter.peek("api", {"all": "x"}).remaining == 9


def test_the_storage_of_limits_uses_the_fake_cluster(cluster):
    storage = storage_from_string("ringfence://prod")
    limiter = FixedWindowRateLimiter(storage)

    assert [limiter.hit(parse("2/minute"), "a") for _ in range(3)] == [True, True, False]
    cluster.advance(60)
    assert limiter.hit(parse("2/minute"), "a")
    storage.close()


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf])
def test_the_fake_clock_moves_only_by_a_finite_number_of_seconds(cluster, seconds):
    with pytest.raises(ValueError, match=f"must be a number of at least 0, got {seconds}"):
        cluster.advance(seconds)


def test_the_fake_clock_names_the_seconds_of_a_timedelta(cluster):
    with pytest.raises(TypeError, match=r"got datetime\.timedelta.*; use the total_seconds\(\)"):
        cluster.advance(timedelta(minutes=1))


def test_a_misspelt_attribute_of_the_cluster_is_an_error(cluster):
    with pytest.raises(AttributeError, match="is_of"):
        cluster.is_of = True


def test_connections_after_the_test_do_not_use_the_fake():
    with FakeCluster({}).installed():
        pass

    limiter = ringfence.blocking.connect(
        "ringfence://127.0.0.1:9", connect_timeout=0.05, raise_on_outage=True
    )
    with pytest.raises(ringfence.PeerUnavailable):
        limiter.check("api", {"a": "b"})
    limiter.close()
