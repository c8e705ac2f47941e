"""ASGI middleware: behaviour when the limiter fails or cannot be reached."""

import logging

import pytest

from ringfence import AccessDenied, Decision, Limiter
from ringfence.client.decision import UNDECIDED, decide
from ringfence.integrations.asgi import RateLimitMiddleware
from tests.ringfence.integrations.asgi.app import hello
from tests.ringfence.integrations.asgi.client import ask, statuses


class Failing(Limiter):
    """Limiter that raises an error at each check and counts the checks."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.checks = 0

    def expect(self, *_: object) -> list[str]:
        return []

    async def check(self, *_: object, **__: object) -> Decision:
        self.checks += 1
        raise self.error


@pytest.mark.parametrize("error", [AccessDenied("no"), RuntimeError("a bug")], ids=repr)
async def test_a_failing_limiter_allows_requests_and_logs_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    app = RateLimitMiddleware(hello, Failing(error), domain="api")

    answers = [await ask(app) for _ in range(3)]

    assert [each.status for each in answers] == [200] * 3
    assert [each.headers["ringfence-outage"] for each in answers] == ["allow"] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


class Unreachable(Limiter):
    """Limiter that returns the decision of a client without a reachable node."""

    def __init__(self) -> None:
        pass

    def expect(self, *_: object) -> list[str]:
        return []

    async def check(self, *_: object, **__: object) -> Decision:
        return decide([UNDECIDED])


async def test_an_outage_is_logged_once_for_many_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = RateLimitMiddleware(hello, Unreachable(), domain="api")

    answers = [await ask(app) for _ in range(3)]

    assert [each.headers["ringfence-outage"] for each in answers] == ["allow"] * 3
    [record] = caplog.records
    assert (record.name, record.levelno) == ("ringfence.integrations", logging.WARNING)
    assert "no node of the limiter answers" in record.message


async def test_a_limiter_that_denies_access_is_not_retried_at_once(
    autojump_clock: object,
) -> None:
    denying, buggy = Failing(AccessDenied("no")), Failing(RuntimeError("a bug"))
    for limiter in (denying, buggy):
        app = RateLimitMiddleware(hello, limiter, domain="api")
        await statuses(app, ["/"] * 5)

    assert (denying.checks, buggy.checks) == (1, 5)
