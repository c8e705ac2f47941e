"""Public API: consistent options, equal async and blocking methods, and few imports."""

import inspect
import subprocess
import sys
from contextlib import AbstractAsyncContextManager

import pytest
import trio

import ringfence
from ringfence import ConfigError, Limiter, RingfenceError
from ringfence.blocking import BlockingLimiter
from ringfence.client.checkpoints import Checkpoints

RULES = {
    "domain": "d",
    "descriptors": [
        {"key": "user", "rate_limit": {"unit": "hour", "requests_per_unit": 5}},
        {
            "key": "job",
            "rate_limit": {"unit": "minute", "requests_per_unit": 1, "algorithm": "concurrency"},
        },
    ],
}
WAITS_FOR_NO_NODE = {
    *("keep", "check_now", "local_check", "expect", "aclose", "end_waits", "release_held"),
    *("unmatched", "rules"),
}


def public(kind: type) -> dict[str, object]:
    return {name: each for name, each in vars(kind).items() if not name.startswith("_")}


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def test_every_method_that_waits_for_nodes_takes_a_timeout() -> None:
    for name, method in public(Limiter).items():
        if name not in WAITS_FOR_NO_NODE:
            timeout = inspect.signature(method).parameters["timeout"]
            assert (timeout.kind, timeout.default) == (timeout.KEYWORD_ONLY, None), name


def test_the_blocking_limiter_has_the_same_methods_and_arguments() -> None:
    twin = public(BlockingLimiter)
    for name, method in public(Limiter).items():
        if callable(method) and name not in {"aclose", "check_now", "end_waits", "release_held"}:
            ours = inspect.signature(twin[name]).parameters
            assert list(ours) == list(inspect.signature(method).parameters), name


def test_the_blocking_functions_take_the_same_options() -> None:
    for name in ("connect", "local"):
        ours = inspect.signature(getattr(ringfence.blocking, name)).parameters
        assert ours == inspect.signature(getattr(ringfence, name)).parameters


def test_all_errors_have_one_base() -> None:
    errors = [getattr(ringfence, name) for name in ringfence.__all__]
    errors = [each for each in errors if inspect.isclass(each)]

    assert all(
        issubclass(each, RingfenceError) for each in errors if issubclass(each, BaseException)
    )
    assert issubclass(ringfence.InvalidLimit, ConfigError)


def test_an_application_on_asyncio_imports_no_trio() -> None:
    program = """
import asyncio, sys, ringfence
async def main():
    async with ringfence.local({"domain": "d", "descriptors": []}) as limiter:
        await limiter.check_limit("1/s", "key")
    async with ringfence.connect("ringfence://127.0.0.1:9", connect_timeout=0.1) as limiter:
        print((await limiter.check_limit("1/s", "key")).source)
asyncio.run(main())
print([name for name in sys.modules if name.partition(".")[0] == "trio"])
"""
    assert output_of(program).splitlines()[:2] == ["policy", "[]"]


def test_a_warning_is_printed_when_logging_is_not_configured() -> None:
    program = "import logging, ringfence; logging.getLogger('ringfence.client').warning('all pass')"

    assert output_of(program) == "all pass\n"


async def test_a_closed_limiter_refuses_calls_and_closes_twice_without_effect() -> None:
    async with ringfence.local(RULES) as limiter:
        held = await limiter.acquire("d", {"job": "a"})
        limiter.keep(held)
        await limiter.aclose()
        await limiter.aclose()
        for call in (
            limiter.check("d", {"user": "a"}),
            limiter.acquire("d", {"user": "a"}),
            limiter.acquire_limit("1/s", "key"),
            limiter.check_many_limit("1/s", ["key"]),
            limiter.release(held),
        ):
            with pytest.raises(ConfigError, match="limiter must be open"):
                await call


async def test_a_limiter_context_can_be_entered_again_but_not_nested() -> None:
    opening = ringfence.local(RULES)
    assert isinstance(opening, AbstractAsyncContextManager)

    async with opening as first:
        assert (await first.check("d", {"user": "a"})).remaining == 4
        with pytest.raises(ConfigError, match="once at a time"):
            await opening.__aenter__()
    async with opening as second:
        assert (await second.check("d", {"user": "a"})).remaining == 4
    with pytest.raises(ConfigError, match="limiter must be open"):
        await first.check("d", {"user": "a"})


async def test_many_keys_of_an_ad_hoc_limit_are_checked_at_once() -> None:
    async with ringfence.local(RULES) as limiter:
        keys = ["a", ("b", "c"), "a", "a"]
        decisions = await limiter.check_many_limit("2/hour", keys, [1, 2, 1, 1])

    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert [decision.remaining for decision in decisions] == [1, 0, 0, 0]


def test_blocking_code_checks_many_keys_of_an_ad_hoc_limit_too() -> None:
    with ringfence.blocking.local(RULES) as limiter:
        decisions = limiter.check_many_limit("1/hour", ["a", "a"])

    assert [decision.allowed for decision in decisions] == [True, False]


@pytest.mark.parametrize("timeout", [-1, "1", float("nan"), True])
async def test_a_timeout_is_a_duration_in_seconds(timeout: object) -> None:  # noqa: ASYNC109
    async with ringfence.local(RULES) as limiter:
        for call in (
            limiter.check("d", {"user": "a"}, timeout=timeout),
            limiter.check_many("d", [{"user": "a"}], timeout=timeout),
            limiter.reset("d", {"user": "a"}, timeout=timeout),
            limiter.acquire("d", {"user": "a"}, timeout=timeout),
            limiter.peek_limit("1/s", "key", timeout=timeout),
        ):
            with pytest.raises(ConfigError, match="timeout must be a duration"):
                await call


async def test_each_call_on_trio_is_a_cancellation_point() -> None:
    checkpoints, passed = Checkpoints(), 0
    with trio.CancelScope() as scope:
        for _ in range(5):
            await checkpoints.take()
            passed += 1
            scope.cancel()

    assert (scope.cancelled_caught, passed) == (True, 1)
