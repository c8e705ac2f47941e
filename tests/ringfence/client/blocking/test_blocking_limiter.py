import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from math import inf

import pytest

import ringfence
from ringfence import runtime
from ringfence.blocking import BlockingLimiter, connect, local
from ringfence.client.slots.slot_waits import SlotWait
from ringfence.errors import ConfigError
from tests.ringfence.client.blocking.background import RULES, background, threads
from tests.ringfence.client.blocking.programs import RULES_OF_USERS, run_python


def test_every_call_blocks_until_it_is_decided():
    with local(RULES) as limiter:
        user = {"user": "a"}

        assert limiter.check("d", user, 2).remaining == 3
        assert limiter.peek("d", user).remaining == 3
        assert limiter.refund("d", user, 1).remaining == 4
        assert [each.remaining for each in limiter.check_many("d", [user] * 2, timeout=5)] == [3, 2]
        assert limiter.reset("d", user).remaining == 5
        assert limiter.acquire("d", user, 5, max_wait=1)
        assert limiter.check_limit("2/hour", "key").remaining == 1
        assert limiter.refund_limit("2/hour", "key").remaining == 2
        assert limiter.reset_limit("2/hour", "key").remaining == 2
        assert limiter.rules.domains == ("d",)


def test_calls_of_several_threads_run_concurrently():
    async def spend_twice(limiter):
        return [(await limiter.check("d", {"user": "a"}, cost)).remaining for cost in (1, 2)]

    with local(RULES) as limiter:
        assert limiter.run(spend_twice) == [4, 2]


def test_a_call_that_was_started_can_be_cancelled():
    started, ended = threading.Event(), threading.Event()

    async def wait_for_ever(limiter):
        started.set()
        try:
            await runtime.sleep(inf)
        finally:
            ended.set()

    with local(RULES) as limiter:
        future = limiter.start(wait_for_ever)
        assert started.wait(5)
        assert future.cancel()
        assert ended.wait(5)


def test_the_future_of_a_started_call_raises_its_error():
    async def fail(limiter):
        raise ZeroDivisionError

    with local(RULES) as limiter:
        with pytest.raises(ZeroDivisionError):
            limiter.start(fail).result(timeout=5)
        assert limiter.check("d", {"user": "a"})


async def test_a_thread_with_its_own_event_loop_can_start_calls():
    limiter = local(RULES)
    limiter.start(lambda each: each.check("d", {"user": "a"})).result(timeout=5)
    limiter.close()

    assert threads() == 0
    with pytest.raises(ConfigError, match="closed"):
        limiter.start(lambda each: each.check("d", {"user": "a"}))


def test_a_place_is_held_while_the_block_runs():
    with local(RULES) as limiter:
        with limiter.hold("d", {"job": "x"}) as held:
            assert held
            assert limiter.peek("d", {"job": "x"}).remaining == 1
        assert limiter.peek("d", {"job": "x"}).remaining == 2


def test_a_place_is_given_back_when_the_block_fails():
    with local(RULES) as limiter:
        with pytest.raises(ZeroDivisionError), limiter.hold("d", {"job": "x"}):
            raise ZeroDivisionError
        assert limiter.peek("d", {"job": "x"}).remaining == 2


def test_a_thread_waits_for_the_slot_that_another_one_releases():
    with local(RULES) as limiter, ThreadPoolExecutor(2) as pool:
        first = limiter.check("d", {"job": "x"}, 2)
        waiting = pool.submit(limiter.acquire, "d", {"job": "x"}, max_wait=30)
        also = pool.submit(limiter.acquire, "d", {"job": "x"}, max_wait=30)
        while limiter.run(waiters) < 2:
            time.sleep(0.01)
        limiter.release(first)
        assert waiting.result(5)
        assert also.result(5)


def test_a_waiting_thread_is_woken_without_the_lock_of_the_engine(monkeypatch):
    """The woken thread may run the loop and wait for this lock."""
    are_locked = []
    wake = SlotWait.wake

    def spy(wait):
        are_locked.append(lock.locked())
        wake(wait)

    monkeypatch.setattr(SlotWait, "wake", spy)
    with local(RULES) as limiter, ThreadPoolExecutor(1) as pool:
        lock = limiter.run(engine_lock)
        first = limiter.check("d", {"job": "x"}, 2)
        waiting = pool.submit(limiter.acquire, "d", {"job": "x"}, max_wait=30)
        while limiter.run(waiters) < 1:
            time.sleep(0.01)
        limiter.release(first)
        assert waiting.result(5)

    assert are_locked[0] is False


async def engine_lock(limiter):
    return limiter._decider._lock


async def waiters(limiter):
    return len(limiter._decider._slots)


def test_hold_raises_without_a_slot_for_rules_and_ad_hoc_limits():
    with local(RULES) as limiter, limiter.hold("d", {"job": "x"}, 2):
        with (
            pytest.raises(ringfence.SlotUnavailable),
            limiter.hold("d", {"job": "x"}, max_wait=0.05),
        ):
            raise AssertionError
        with limiter.hold("d", {"job": "x"}, max_wait=0, raise_on_denied=False) as denied:
            assert not denied
        with limiter.hold_limit("1 concurrent", "key") as held:
            limiter.keep(held)
            assert limiter.peek_limit("1 concurrent", "key").remaining == 0
        assert limiter.peek_limit("1 concurrent", "key").remaining == 1
        with pytest.raises(ConfigError), limiter.hold_limit("1/s", "key"):
            raise AssertionError


def test_the_end_of_a_block_settles_its_reservation():
    user = {"user": "a"}
    with local(RULES) as limiter:
        with limiter.reserve("d", user, cost=3) as reservation:
            reservation.cost = 1
        assert limiter.peek("d", user).remaining == 4
        with pytest.raises(ZeroDivisionError), limiter.reserve("d", user, cost=3):
            raise ZeroDivisionError
        assert limiter.peek("d", user).remaining == 1
        with limiter.reserve_limit("5/hour", "key", cost=1) as reservation:
            reservation.cost = 4
        assert limiter.peek_limit("5/hour", "key").remaining == 1


def test_what_a_daemon_thread_holds_is_released_when_the_process_exits():
    code = """
import threading, ringfence, ringfence.blocking as b
limiter = b.local({'domain': 'd', 'descriptors': []})
held = threading.Event()
def hold():
    with limiter.hold_limit('1 concurrent', 'key'):
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
release = ringfence.Limiter.release_held
async def release_and_peek(inner):
    await release(inner)
    print((await inner.peek_limit('1 concurrent', 'key')).remaining)
ringfence.Limiter.release_held = release_and_peek
"""
    done = run_python(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    "wait",
    [
        "limiter.acquire_limit('1 concurrent', 'key', max_wait=100)",
        "limiter.hold_limit('1 concurrent', 'key', max_wait=100).__enter__()",
    ],
)
def test_a_daemon_thread_that_waits_does_not_get_the_slot_that_is_released_at_exit(wait):
    code = f"""
import threading, ringfence, ringfence.blocking as b
limiter = b.local({{'domain': 'd', 'descriptors': []}})
held = limiter.hold_limit('1 concurrent', 'key')
held.__enter__()
def wait():
    {wait}
    print('the thread got a slot')
threading.Thread(target=wait, daemon=True).start()
async def is_waiting(inner):
    return bool(inner._slots._waiting)
while not limiter.run(is_waiting):
    pass
release = ringfence.Limiter.release_held
async def release_and_peek(inner):
    await release(inner)
    for _ in range(3):
        await ringfence.runtime.sleep(0.05)
    print((await inner.peek_limit('1 concurrent', 'key')).remaining)
ringfence.Limiter.release_held = release_and_peek
"""
    done = run_python(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    ("action", "max_wait"), [("limiter.close()", 100.0), ("thread.join()", 0.5)]
)
def test_an_exit_handler_can_close_a_limiter_or_join_a_daemon_thread_that_waits_for_a_slot(
    action: str, max_wait: float
) -> None:
    code = f"""
import atexit, threading
atexit.register(lambda: ({action}, print('done')))  # Runs after that of ringfence.
import ringfence.blocking as b
limiter = b.local({{'domain': 'd', 'descriptors': []}})
taken = limiter.acquire_limit('1 concurrent', 'key')
def wait():
    try:
        limiter.acquire_limit('1 concurrent', 'key', max_wait={max_wait})
    except Exception:
        pass
thread = threading.Thread(target=wait, daemon=True)
thread.start()
async def is_waiting(inner):
    return bool(inner._slots._waiting)
while not limiter.run(is_waiting):
    pass
"""
    done = run_python(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_limit_without_slots_cannot_be_held():
    with local(RULES) as limiter:
        with (
            pytest.raises(ConfigError, match="algorithm concurrency"),
            limiter.hold("d", {"user": "a"}),
        ):
            raise AssertionError
        assert limiter.peek("d", {"user": "a"}).remaining == 5


def test_the_first_call_starts_a_limiter_that_was_not_entered():
    limiter = local(RULES)
    try:
        assert threads() == 0
        assert not limiter.is_open
        assert limiter.check("d", {"user": "a"})
        assert threads() == 1
        assert limiter.is_open
    finally:
        limiter.close()
    assert threads() == 0


def test_a_limiter_that_the_application_drops_closes_by_itself():
    before = len(os.listdir("/dev/fd"))
    limiter = local(RULES)
    assert limiter.check("d", {"user": "a"})
    (helper,) = background()

    del limiter
    gc.collect()

    helper.join(30)
    assert not helper.is_alive()
    for closing in [each for each in threading.enumerate() if each.name == "ringfence-close"]:
        closing.join(30)
    assert len(os.listdir("/dev/fd")) == before


def test_closing_ends_the_calls_that_wait_for_a_slot():
    limiter = local(RULES)
    with ThreadPoolExecutor(1) as pool:
        taken = [limiter.check("d", {"job": "a"}) for _ in range(2)]
        waiting = pool.submit(limiter.acquire, "d", {"job": "a"}, max_wait=20)
        while not limiter.run(is_waiting):
            time.sleep(0.001)
        limiter.close()
        with pytest.raises(ConfigError, match="closed"):
            waiting.result(10)

    assert all(taken)


async def is_waiting(limiter):
    return bool(limiter._slots._waiting)


def test_a_foreign_event_loop_begins_calls_without_waiting_for_them():
    limiter = local(RULES)
    assert not limiter.is_open
    with limiter:
        assert limiter.is_open
        calls = [limiter.start(lambda inner: inner.check("d", {"user": "a"})) for _ in range(6)]
        assert [call.result(timeout=10).allowed for call in calls].count(True) == 5
    assert not limiter.is_open


def test_closing_twice_or_before_the_first_call_is_harmless():
    limiter = local(RULES)
    limiter.close()
    with limiter:
        pass
    limiter.close()

    assert threads() == 0


def test_a_limiter_that_was_closed_never_connects_by_itself():
    used, unused = local(RULES), local(RULES)
    with used:
        used.check("d", {"user": "a"})
    unused.close()

    for limiter in (used, unused):
        for call in (
            lambda: limiter.check("d", {"user": "a"}),  # noqa: B023 - called within the loop
            lambda: limiter.rules,  # noqa: B023
        ):
            with pytest.raises(ConfigError, match="limiter must be open"):
                call()
    assert threads() == 0


def test_a_limiter_can_be_entered_again_after_it_was_closed():
    limiter = local(RULES)
    for _ in range(2):
        with limiter:
            assert limiter.check("d", {"user": "a"}).remaining == 4


def test_threads_share_one_limiter_and_one_budget():
    with local(RULES) as limiter, ThreadPoolExecutor(8) as pool:
        decisions = list(pool.map(lambda _: limiter.check("d", {"user": "a"}), range(40)))

    assert sum(decision.allowed for decision in decisions) == 5


def test_a_local_limiter_is_called_in_the_callers_thread():
    """A call in another thread takes twenty times as long as a decision."""
    asked_by = set()

    class Clock:
        def now(self):
            asked_by.add(threading.current_thread())
            return 0

    with local(RULES, clock=Clock()) as limiter:
        for number in range(100):  # Longer than an event loop waits before it runs other tasks.
            limiter.check("d", {"user": f"{number}"})
            limiter.check("d", {"nobody": "limits this"})
            limiter.check_limit("5/s", f"{number}")
        decision = limiter.acquire("d", {"job": "a"})
        limiter.release(decision)
        limiter.check_many("d", [{"user": "a"}, {"user": "b"}])
        limiter.peek("d", {"user": "a"})
        limiter.refund("d", {"user": "a"})
        limiter.reset("d", {"user": "a"})
        limiter.refund_limit("5/s", "1")
        limiter.reset_limit("5/s", "1")

    assert asked_by == {threading.current_thread()}


def test_concurrent_first_calls_of_threads_start_the_limiter_once():
    limiter = local(RULES)
    barrier = threading.Barrier(8)

    def check(_):
        barrier.wait()
        return limiter.check("d", {"user": "a"}).remaining, threads()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(check, range(8)))
    limiter.close()

    assert sorted(remaining for remaining, _ in found) == [0, 0, 0, 0, 1, 2, 3, 4]
    assert {count for _, count in found} == {1}


def test_errors_of_a_call_reach_the_caller_unchanged():
    with local(RULES) as limiter, pytest.raises(ConfigError, match="whole number"):
        limiter.check("d", {"user": "a"}, -1)


def test_errors_of_the_start_reach_the_caller_unchanged(tmp_path):
    limiter = local(tmp_path / "missing.yaml")

    for _ in range(2):
        with pytest.raises(ConfigError, match=r"missing\.yaml"):
            limiter.check("d", {"user": "a"})
    assert threads() == 0


def test_a_wrong_address_raises_at_the_first_call():
    limiter = connect("http://a:1")

    with pytest.raises(ConfigError, match="must begin with ringfence://"):
        limiter.check("d", {"user": "a"})


def test_calls_in_progress_end_before_it_closes():
    started = threading.Event()

    @asynccontextmanager
    async def slow():
        async with ringfence.local(RULES) as limiter:
            yield Announcing(limiter, started)

    limiter = BlockingLimiter(slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limiter.acquire, "d", {"user": "a"}, max_wait=1)
        started.wait()
        limiter.close()

        assert waiting.result()


class Announcing:
    """Limiter that sets an event when it receives a call."""

    def __init__(self, limiter, started):
        self._limiter = limiter
        self._begun = started

    async def acquire(self, *arguments, **options):
        self._begun.set()
        return await self._limiter.acquire(*arguments, **options)


def test_a_program_that_never_closes_its_limiter_ends():
    code = (
        f"import ringfence.blocking as b; limiter = b.local({RULES_OF_USERS});"
        "print(limiter.check('d', {'user': 'a'}).allowed)"
    )
    done = run_python(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
