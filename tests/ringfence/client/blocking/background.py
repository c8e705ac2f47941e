"""Rules of the limiters under test, and the background threads that these limiters have."""

import threading

RULES = {
    "domain": "d",
    "descriptors": [
        {"key": "user", "rate_limit": {"requests_per_unit": 5, "unit": "hour"}},
        {
            "key": "job",
            "rate_limit": {"requests_per_unit": 2, "unit": "hour", "algorithm": "concurrency"},
        },
    ],
}

EARLIER = frozenset[threading.Thread]()
"""Threads from before the test. That of a limiter that a signal interrupted may still end."""


def background():
    return [each for each in {*threading.enumerate()} - EARLIER if each.name == "ringfence"]


def threads():
    return len(background())
