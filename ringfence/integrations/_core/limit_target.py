"""What a function call is counted against: an ad-hoc limit with a key, or rules; and its cost."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import Descriptors
from ringfence.errors import ConfigError
from ringfence.limiter import Limit
from ringfence.rules import parse_limit

__all__ = ["AdHocTarget", "LimitTarget", "RuleTarget", "TargetCall", "require_one"]

TargetCall = Callable[[Limiter], Awaitable[Decision]]


class AdHocTarget(Struct, frozen=True):
    """Ad-hoc limit, key and cost against which a function call is checked."""

    limit: str | Limit
    key: tuple[str, ...]
    cost: int

    async def check(self, limiter: Limiter) -> Decision:
        """Check a function call against the ad-hoc limit without waiting."""
        return await limiter.check_limit(self.limit, *self.key, cost=self.cost)

    async def acquire(self, limiter: Limiter, max_wait: float) -> Decision:
        """Wait until the ad-hoc limit allows a function call, at most `max_wait` seconds."""
        return await limiter.acquire_limit(self.limit, *self.key, cost=self.cost, max_wait=max_wait)


class RuleTarget(Struct, frozen=True):
    """Domain and descriptors, by which rules are found, and cost of a function call."""

    domain: str
    descriptors: Descriptors
    cost: int

    async def check(self, limiter: Limiter) -> Decision:
        """Check a function call against the rules without waiting."""
        return await limiter.check(self.domain, self.descriptors, self.cost)

    async def acquire(self, limiter: Limiter, max_wait: float) -> Decision:
        """Wait until the rules allow a function call, at most `max_wait` seconds."""
        return await limiter.acquire(self.domain, self.descriptors, self.cost, max_wait=max_wait)


LimitTarget = AdHocTarget | RuleTarget


def require_one(limit: str | Limit | None, domain: str | None, descriptors: object) -> None:
    """Raise `ConfigError` unless the arguments are either a valid limit, or a domain with
    descriptors."""
    if (limit is None) == (domain is None) or (domain is None) != (descriptors is None):
        raise ConfigError("give either a limit, as in '5/minute', or a domain and its descriptors")
    if isinstance(limit, str):
        parse_limit(limit)
