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
class Asked:
    """One request: hits of the request, and per descriptor its key, value and own hits."""

    hits: int
    descriptors: list[tuple[str, str, int | None]]

    def message(self) -> RateLimitRequest:
        made = RateLimitRequest(domain="api", hits_addend=self.hits)
        for key, value, own in self.descriptors:
            descriptor = made.descriptors.add()
            descriptor.entries.add(key=key, value=value)
            if own is not None:
                descriptor.hits_addend.value = own
        return made


@dataclass
class GoService:
    """The counting rules of `envoyproxy/ratelimit`: every hit counts, over the limit too.

    Sources: src/redis/fixed_cache_impl.go (INCRBY always), src/limiter/base_limiter.go (over when
    the count after it is larger than the limit), src/utils/utilities.go (absent hits are 1).
    """

    counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def answer(self, asked: Asked, now: int) -> list[tuple[int, int]]:
        """Return code and remaining of each descriptor."""
        reported = []
        for key, value, own in asked.descriptors:
            counter = key, value, now // MINUTE_NS
            self.counts[counter] += (asked.hits or 1) if own is None else own
            count = self.counts[counter]
            reported.append((OVER if count > LIMITS[key] else OK, max(0, LIMITS[key] - count)))
        return reported


hits = st.sampled_from([0, 0, 0, 1, 2, 5, 300])
own_hits = st.none() | st.sampled_from([0, 0, 1, 2, 3, 300])
descriptors = st.lists(
    st.tuples(st.sampled_from([*LIMITS]), st.sampled_from("xy"), own_hits),
    min_size=1,
    max_size=3,
    unique_by=lambda descriptor: descriptor[:2],
)
SMALL = ["few", "some", "none"]
"""Keys of which no units are lent: those that are lent count as spent until they come back."""
logs = st.lists(
    st.tuples(st.integers(0, 25), st.builds(Asked, hits, descriptors)), min_size=1, max_size=40
)
"""Requests with the seconds before each."""


@settings(deadline=None)
@given(log=logs)
def test_answers_equal_those_of_the_go_service(
    log: list[tuple[int, Asked]],
) -> None:
    async def replay() -> None:
        clock, go = HandClock(), GoService()
        async with ringfence.local(load_text(RULES).rules, clock=clock) as limiter:
            service = make_rls(limiter, settings_of())
            for seconds, asked in log:
                clock.time += seconds * 10**9
                await compare(service, go, asked, clock.time)

    trio.run(replay)


async def test_cluster_answers_with_a_denial_cache_equal_the_go_service(
    autojump_clock: MockClock,
) -> None:
    random, go = Random(7), GoService()
    async with world(rules=RULES) as w, w.client("a") as limiter:
        service = make_rls(limiter, settings_of())
        for _ in range(400):
            w.clock.time += random.randrange(2) * 10**9
            keys = random.sample(SMALL, random.randint(1, 2))
            owns = [random.choice([None, None, 0, 1, 2, 3]) for _ in keys]
            values = [random.choice("xyz") for _ in keys]
            asked = Asked(random.choice([0, 0, 2]), [*zip(keys, values, owns, strict=True)])
            await compare(service, go, asked, w.clock.time)

        assert w.total("overdrawn") > 50


async def compare(service: RateLimitService, go: GoService, asked: Asked, now: int) -> None:
    expected = go.answer(asked, now)
    answer = await service.should_rate_limit(asked.message())

    reported = [(status.code, status.limit_remaining) for status in answer.statuses]
    assert reported == expected, asked
    assert answer.overall_code == max(code for code, _ in expected)
