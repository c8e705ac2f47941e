"""Rules of the limiters under test, and the list of their background threads."""

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
"""Threads that started before the test, such as threads of interrupted limiters that end late."""


def background():
    return [each for each in {*threading.enumerate()} - EARLIER if each.name == "ringfence"]


def threads():
    return len(background())
