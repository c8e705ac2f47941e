"""In-process limiters with rules and clocks of tests."""

from contextlib import asynccontextmanager

import trio

import ringfence
from ringfence.rules.loading.mapping import load_mapping

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


class HandClock:
    """Clock that starts in the middle of a minute and changes only when a test sets `at`."""

    def __init__(self):
        self.at = 30 * SECOND

    def now(self):
        return self.at


class TrioClock:
    """Clock that reads trio's virtual time."""

    def now(self):
        return round(trio.current_time() * SECOND)


def limited(amount, **more):
    return {"requests_per_unit": amount, "unit": "minute", "algorithm": "fixed_window"} | more


def described(key, amount=None, **more):
    """Return a descriptor of a rule file for any value of `key`."""
    value = {} if amount is None else {"rate_limit": limited(amount)}
    return {"key": key} | value | more


def rules_of(*descriptors):
    return load_mapping({"domain": "d", "descriptors": list(descriptors)}).rules


@asynccontextmanager
async def limiter_of(*descriptors, clock=None):
    async with ringfence.local(rules_of(*descriptors), clock=clock or HandClock()) as limiter:
        yield limiter


async def left(limiter, **entries):
    return (await limiter.peek("d", entries)).remaining
