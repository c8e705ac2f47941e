"""ASGI application and rules that tests of the middleware share."""

from functools import partial

import ringfence
from ringfence.integrations._core.lifespan import Receive, Scope, Send

PER_CLIENT = {"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}}


RULES = {
    "domain": "api",
    "descriptors": [
        PER_CLIENT,
        {
            "key": "running",
            "rate_limit": {"unit": "hour", "requests_per_unit": 1, "algorithm": "concurrency"},
        },
        {
            "key": "queue",
            "rate_limit": {
                "unit": "second",
                "requests_per_unit": 10,
                "algorithm": "leaky_bucket",
                "mode": "queue",
            },
        },
    ],
}


def in_process() -> "partial[object]":
    return partial(ringfence.local, RULES)


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in chunks with the status in the path, or 200."""
    status = int(scope["path"][1:]) if scope["path"][1:].isdigit() else 200
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"text/plain"), (b"x-tokens", b"4")],
        }
    )
    await send({"type": "http.response.body", "body": b"hello, ", "more_body": True})
    await send({"type": "http.response.body", "body": b"world"})
