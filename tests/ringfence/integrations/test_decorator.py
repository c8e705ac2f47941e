import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

import ringfence
from ringfence.client.decision import Source, Status, decide
from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError
from ringfence.integrations.decorator import OverLimit, limited
from ringfence.rules import RuleSet

ROOT = Path(__file__).parents[3]
RULES = {
    "domain": "jobs",
    "descriptors": [
        {"key": "to", "rate_limit": {"unit": "hour", "requests_per_unit": 2}},
    ],
}


class TrioClock:
    def now(self):
        return round(trio.current_time() * 1e9)


def test_a_function_is_called_as_often_as_its_limit_allows(limiter):
    called = []

    @limited(limiter, "2/hour", key="user")
    def greet(user, times=1):
        """Say hello."""
        called.append((user, times))
        return f"hello {user}"

    assert greet("ann") == "hello ann"
    assert greet(user="ann", times=2) == "hello ann"
    assert greet("bob") == "hello bob"
    with pytest.raises(OverLimit, match="greet is over its limit of 2; retry in") as caught:
        greet("ann")
    assert 0 < caught.value.retry_after <= 7200
    assert caught.value.decision.limit == 2
    assert called == [("ann", 1), ("ann", 2), ("bob", 1)]
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")


@pytest.mark.parametrize(
    ("retry_after", "advice"),
    [(0.25, "retry in 0.25 s"), (2919.4, "retry in 2920 s"), (None, "so no wait helps")],
)
def test_the_error_of_a_denied_call_states_the_retry_time(retry_after, advice):
    denied = decide((Status(False, None, 2, 0, retry_after, 60.0, 0.0, Source.OWNER),))
    assert str(OverLimit("greet", denied)).endswith(advice)


def test_a_denied_call_can_return_a_default_instead(limiter):
    @limited(limiter, "1/hour", when_denied="return", default="later")
    def work():
        return "done"

    assert [work(), work()] == ["done", "later"]


@pytest.mark.parametrize(
    ("key", "calls"),
    [
        ((), ["ab", "xy"]),
        ("left", ["ab", "ay"]),
        (("left", "right"), ["ab", "ab"]),
        (lambda left, right: right, ["ab", "xb"]),
        (lambda left, right: (left, right), ["ab", "ab"]),
    ],
)
def test_calls_with_the_same_key_share_a_budget(limiter, key, calls):
    @limited(limiter, "1/hour", key=key, when_denied="return", default=False)
    def work(left, right):
        return True

    assert [work(*pair) for pair in calls] == [True, False]


def test_functions_have_separate_counters_unless_they_share_a_name(limiter):
    def make(**options):
        @limited(limiter, "1/hour", when_denied="return", default=False, **options)
        def first():
            return True

        @limited(limiter, "1/hour", when_denied="return", default=False, **options)
        def second():
            return True

        return first, second

    first, second = make()
    assert [first(), second(), first()] == [True, True, False]
    first, second = make(name="mail")
    assert [first(), second()] == [True, False]


def test_the_cost_can_depend_on_the_call(limiter):
    @limited(limiter, "5/hour", cost=len)
    def send(messages):
        return len(messages)

    assert send("abc") == 3
    assert send("ab") == 2
    with pytest.raises(OverLimit, match="above the limit, so no wait helps"):
        send("abcdef")


def test_rules_of_a_domain_can_define_the_limit():
    with ringfence.blocking.local(RULES) as limiter:

        @limited(limiter, domain="jobs", descriptors=lambda to: {"to": to}, when_denied="return")
        def send(to):
            return to

        @limited(limiter, domain="jobs", descriptors={"to": "a"}, when_denied="return")
        def send_to_a():
            return "a"

        assert [send("a"), send_to_a(), send("a"), send("b")] == ["a", "a", None, "b"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_coroutine_function_can_use_a_blocking_limiter_in_any_event_loop(limiter, backend):
    @limited(limiter, "1/hour", when_denied="return", default="later")
    async def work():
        await anyio.lowlevel.checkpoint()
        return "done"

    async def twice():
        return [await work(), await work()]

    assert anyio.run(twice, backend=backend) == ["done", "later"]


CONCURRENT = "1 concurrent ttl 60s"


def test_a_slot_is_held_while_a_function_runs(limiter):
    @limited(limiter, CONCURRENT, name="slots", when_denied="return", default="denied")
    def work(inner=None):
        found = inner() if inner else "done"
        if found == "denied":
            raise ZeroDivisionError
        return found

    assert [work(), work()] == ["done", "done"]
    with pytest.raises(ZeroDivisionError):
        work(work)
    assert work() == "done"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_slot_is_released_if_its_renewal_cannot_begin(limiter, monkeypatch, *, is_async):
    def fail(*_):
        raise ZeroDivisionError

    def call(function):
        return anyio.run(function) if is_async else function()

    def work():
        return "done"

    async def work_async():
        return "done"

    limits = limited(limiter, CONCURRENT, name=f"renewal-{is_async}")
    limited_work = limits(work_async if is_async else work)
    with monkeypatch.context() as patch:
        patch.setattr(Limiter, "keep", fail)
        with pytest.raises(ZeroDivisionError):
            call(limited_work)

    assert call(limited_work) == "done"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("is_blocking", [False, True])
def test_a_slot_is_held_while_a_coroutine_function_runs(limiter, backend, *, is_blocking):
    async def main():
        held = anyio.Event()
        async with ringfence.local(RULES) as inner:

            @limited(
                *(limiter if is_blocking else inner, CONCURRENT),
                name=f"{backend}-{is_blocking}",
                when_denied="return",
            )
            async def work(*, waits=False):
                if waits:
                    held.set()
                    await anyio.sleep_forever()
                return "done"

            assert [await work(), await work()] == ["done", "done"]
            with anyio.move_on_after(0.01):
                await work(waits=True)
            assert await work() == "done"
            held = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(partial(work, waits=True))
                await held.wait()
                assert await work() is None
                group.cancel_scope.cancel()

    anyio.run(main, backend=backend)


async def test_waiting_calls_proceed_one_by_one_until_their_maximum_wait(autojump_clock):
    async with ringfence.local(RuleSet(), clock=TrioClock()) as limiter:
        began = trio.current_time()

        async def work():
            return trio.current_time() - began

        def waiting(max_wait):
            limit = "1/s token_bucket"
            return limited(limiter, limit, name="w", when_denied="wait", max_wait=max_wait)(work)

        assert [await waiting(1.5)() for _ in range(3)] == pytest.approx([0, 1, 2])
        with pytest.raises(OverLimit):
            await waiting(0.5)()


async def test_waiting_calls_obey_the_rules(autojump_clock):
    async with ringfence.local(RULES, clock=TrioClock()) as limiter:

        @limited(limiter, domain="jobs", descriptors={"to": "a"}, when_denied="wait")
        async def work():
            return True

        assert await work()
        assert await work()
        with pytest.raises(OverLimit):
            await work()


def test_a_callback_can_return_the_limiter_at_the_first_call(limiter):
    found = []

    @limited(lambda: found[0], "1/hour")
    def work():
        return True

    found.append(limiter)
    assert work()


async def test_a_plain_function_needs_a_blocking_limiter():
    async with ringfence.local(RuleSet()) as limiter:
        with pytest.raises(ConfigError, match="cannot await; give it a limiter"):
            limited(limiter, "1/s")(len)
        later = limited(lambda: limiter, "1/s", name="len")(len)
        with pytest.raises(ConfigError, match="cannot await"):
            later("abc")


async def do_nothing(*_):
    pass


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "give either a limit"),
        ({"limit": "1/s", "domain": "d", "descriptors": {"a": "b"}}, "give either a limit"),
        ({"domain": "d"}, "give either a limit"),
        ({"limit": "1/fortnigt"}, "unknown unit"),
        ({"limit": "1/s", "when_denied": "shout"}, "must be raise, wait or return, got 'shout'"),
        ({"limit": "1/s", "max_wait": -1}, "max_wait must be a duration"),
        ({"limit": "1/s", "key": "usr"}, r"must be a parameter of .*greet \(user\), got 'usr'"),
        ({"limit": "1/s", "key": do_nothing}, "key 'do_nothing' must be a plain function"),
        ({"limit": "1/s", "cost": do_nothing}, "cost 'do_nothing' must be a plain"),
    ],
)
def test_invalid_arguments_are_reported_at_decoration(limiter, options, error):
    def greet(user):
        return user

    with pytest.raises(ConfigError, match=error):
        limited(limiter, **options)(greet)


@pytest.mark.parametrize("given", [None, "ringfence://x", 5])
def test_an_invalid_limiter_is_reported_at_decoration(given):
    with pytest.raises(ConfigError, match=f"limiter must be a limiter .*, got {given!r}; give"):
        limited(given, "1/s")


def test_a_callback_that_returns_no_limiter_is_an_error(limiter):
    with pytest.raises(ConfigError, match="limiter 'do_nothing' must be a plain function"):
        limited(do_nothing, "1/s")
    greet = limited(lambda: None, "1/s")(lambda user: user)
    with pytest.raises(ConfigError, match="must return a limiter, got None"):
        greet("ann")


def test_a_generator_cannot_be_limited(limiter):
    async def numbers():
        yield 1

    def letters():
        yield "a"

    for each in (numbers, letters):
        with pytest.raises(ConfigError, match="limit the function that iterates"):
            limited(limiter, "1/s")(each)


def test_a_callable_without_a_name_needs_the_name_of_its_counter(limiter):
    work = partial(sum, [1, 2])

    with pytest.raises(ConfigError, match=r"has no name, so give .* name='send'"):
        limited(limiter, "1/s")(work)
    assert limited(limiter, "1/s", name="sum")(work)() == 3


@pytest.mark.parametrize("setting", ["key", "cost", "descriptors"])
def test_a_callback_that_does_not_accept_the_arguments_is_refused_at_decoration(setting, limiter):
    options = {setting: lambda: 1}
    options |= {"domain": "d"} if setting == "descriptors" else {"limit": "1/s"}

    with pytest.raises(ConfigError, match=rf"{setting} must be .* arguments of .*mail\(to"):

        @limited(limiter, **options)
        def mail(to, text=""): ...


def test_a_callback_can_omit_arguments_that_have_defaults(limiter):
    @limited(limiter, "1/s", key=lambda to: to, cost=lambda to, text="": 1)
    def mail(to, text=""):
        return True

    assert mail("ann")


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_the_error_for_a_method_decorator_below_names_the_right_order(limiter, kind):
    advice = f"got a {kind.__name__}; write @{kind.__name__} above @limited"
    with pytest.raises(ConfigError, match=advice):
        limited(limiter, "5/hour")(kind(lambda: 1))
    with pytest.raises(ConfigError, match="must decorate a function, got 5"):
        limited(limiter, "5/hour")(5)


def test_the_error_for_a_wrong_call_names_the_function(limiter):
    @limited(limiter, "5/hour", key="user")
    def greet(user):
        raise AssertionError

    with pytest.raises(TypeError, match=r"greet\(\) missing a required argument: 'user'"):
        greet()


TYPED_CALLS = """
from typing import assert_type

import ringfence.blocking
from ringfence.integrations.decorator import limited

limiter = ringfence.blocking.connect()


@limited(limiter, "5/s", when_denied="return")
def without_default(number: int) -> str: ...


@limited(limiter, "5/s", when_denied="return", default=0)
def with_default(number: int) -> str: ...


@limited(limiter, "5/s", when_denied="return")
async def asynchronous(number: int) -> str: ...


@limited(limiter, "5/s")
def raising(number: int) -> str: ...


class Shop:
    @limited(limiter, "5/s", key="number", when_denied="return")
    def order(self, number: int) -> str: ...

    @classmethod
    @limited(limiter, "5/s", when_denied="wait")
    def open(cls, number: int) -> str: ...


async def check_types() -> None:
    assert_type(without_default(1), str | None)
    assert_type(with_default(1), str | int)
    assert_type(await asynchronous(1), str | None)
    assert_type(raising(1), str)
    assert_type(Shop().order(1), str | None)
    assert_type(Shop.open(1), str)
"""


def test_the_default_of_a_denied_call_is_in_the_type_of_the_result(tmp_path):
    program = tmp_path / "calls.py"
    program.write_text(TYPED_CALLS, "utf-8")
    quiet = ["--follow-imports=silent", "--disable-error-code=empty-body"]
    options = ["--config-file=", "--strict", *quiet]
    command = [sys.executable, "-m", "mypy", *options, str(program)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
