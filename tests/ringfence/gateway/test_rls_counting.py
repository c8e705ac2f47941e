"""Fixed windows through the rate limit service count exactly as `envoyproxy/ratelimit` does."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import trio
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import ringfence
from ringfence.gateway.grpc.rls import RateLimitService
from ringfence.gateway.process.worker import make_rls
from ringfence.rules.loading.yaml_files import load_text
from tests.node.cluster import world
from tests.ringfence.gateway.gateway import HandClock, settings_of

OK, OVER = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT
MINUTE_NS = 60 * 10**9
LIMITS = {"few": 4, "some": 10, "many": 1000, "none": 0}
RULES = "domain: api\ndescriptors:\n" + "".join(
    f"  - key: {key}\n"
    f"    rate_limit: {{unit: minute, requests_per_unit: {limit}, algorithm: fixed_window}}\n"
    for key, limit in LIMITS.items()
)


@dataclass
class SentRequest:
    """Request with its hits, and the key, value and own hits of each descriptor."""

    hits: int
    descriptors: list[tuple[str, str, int | None]]

    def message(self) -> RateLimitRequest:
        request = RateLimitRequest(domain="api", hits_addend=self.hits)
        for key, value, own_hits in self.descriptors:
            descriptor = request.descriptors.add()
            descriptor.entries.add(key=key, value=value)
            if own_hits is not None:
                descriptor.hits_addend.value = own_hits
        return request


@dataclass
class GoService:
    """Counting rules of `envoyproxy/ratelimit`: every hit counts, also beyond the limit.

    Sources: src/redis/fixed_cache_impl.go (INCRBY always), src/limiter/base_limiter.go (over when
    the count after it is larger than the limit), src/utils/utilities.go (absent hits are 1).
    """

    counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def answer(self, sent: SentRequest, now: int) -> list[tuple[int, int]]:
        """Count the request; return code and remaining units of each descriptor."""
        results = []
        for key, value, own_hits in sent.descriptors:
            counter = key, value, now // MINUTE_NS
            self.counts[counter] += (sent.hits or 1) if own_hits is None else own_hits
            count = self.counts[counter]
            results.append((OVER if count > LIMITS[key] else OK, max(0, LIMITS[key] - count)))
        return results


hits = st.sampled_from([0, 0, 0, 1, 2, 5, 300])
own_hits = st.none() | st.sampled_from([0, 0, 1, 2, 3, 300])
descriptors = st.lists(
    st.tuples(st.sampled_from([*LIMITS]), st.sampled_from("xy"), own_hits),
    min_size=1,
    max_size=3,
    unique_by=lambda descriptor: descriptor[:2],
)
SMALL = ["few", "some", "none"]
"""Keys without leases: leased units count as spent until they are returned."""
logs = st.lists(
    st.tuples(st.integers(0, 25), st.builds(SentRequest, hits, descriptors)),
    min_size=1,
    max_size=40,
)
"""Requests with the seconds before each."""


@settings(deadline=None)
@given(log=logs)
def test_responses_equal_those_of_the_go_service(
    log: list[tuple[int, SentRequest]],
) -> None:
    async def replay() -> None:
        clock, go = HandClock(), GoService()
        async with ringfence.local(load_text(RULES).rules, clock=clock) as limiter:
            service = make_rls(limiter, settings_of())
            for seconds, sent in log:
                clock.time += seconds * 10**9
                await compare(service, go, sent, clock.time)

    trio.run(replay)


async def test_responses_of_a_cluster_with_a_denial_cache_equal_those_of_the_go_service(
    autojump_clock: MockClock,
) -> None:
    random, go = Random(7), GoService()
    async with world(rules=RULES) as w, w.client("a") as limiter:
        service = make_rls(limiter, settings_of())
        for _ in range(400):
            w.clock.time += random.randrange(2) * 10**9
            keys = random.sample(SMALL, random.randint(1, 2))
            hits_of_keys = [random.choice([None, None, 0, 1, 2, 3]) for _ in keys]
            values = [random.choice("xyz") for _ in keys]
            sent = SentRequest(
                random.choice([0, 0, 2]), [*zip(keys, values, hits_of_keys, strict=True)]
            )
            await compare(service, go, sent, w.clock.time)

        assert w.total("overdrawn") > 50


async def compare(service: RateLimitService, go: GoService, sent: SentRequest, now: int) -> None:
    expected = go.answer(sent, now)
    answer = await service.should_rate_limit(sent.message())

    results = [(status.code, status.limit_remaining) for status in answer.statuses]
    assert results == expected, sent
    assert answer.overall_code == max(code for code, _ in expected)
