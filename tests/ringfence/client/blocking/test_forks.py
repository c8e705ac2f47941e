"""Blocking limiters and their background threads after a fork."""

import os
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

import ringfence
from ringfence.blocking import BlockingLimiter, local
from tests.ringfence.client.blocking.background import RULES, threads
from tests.ringfence.client.blocking.programs import RULES_OF_USERS, run_python

forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_child(call):
    """Return whether `call` is true in a forked child; kill a child that hangs."""
    child = os.fork()
    if child == 0:
        is_well = False
        try:
            is_well = call()
        finally:
            os._exit(0 if is_well else 1)
    ended = os.pidfd_open(child)
    try:
        if not select.select([ended], [], [], 20)[0]:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(ended)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def test_the_first_call_imports_nothing_because_a_fork_meanwhile_would_break_the_import():
    ended = run_python(
        "import sys, ringfence.blocking\n"
        "limiter = ringfence.blocking.connect('ringfence://127.0.0.1:9', connect_timeout=0.2)\n"
        "before = {*sys.modules}\n"
        "limiter.check_limit('1/second', 'a')\n"
        "print(sorted({*sys.modules} - before))\n"
    )

    assert ended.stdout == "[]\n", ended.stderr


@forks
def test_a_forked_child_starts_its_own_thread_and_leaves_that_of_its_parent_alone():
    with local(RULES) as limiter:
        limiter.check("d", {"user": "a"}, 2)

        assert in_child(lambda: limiter.check("d", {"user": "a"}).remaining == 4)
        assert limiter.check("d", {"user": "a"}).remaining == 2


@forks
def test_a_forked_child_can_close_inherited_and_its_own_limiters():
    def use_and_close():
        limiter.close()
        with limiter:
            limiter.check("d", {"user": "a"})
        return threads() == 0

    with local(RULES) as limiter:
        assert in_child(use_and_close)
        assert limiter.check("d", {"user": "a"})


@forks
def test_a_lock_held_during_a_fork_does_not_block_the_child():
    entered, leave = threading.Event(), threading.Event()

    @asynccontextmanager
    async def slow():
        if not entered.is_set():
            entered.set()
            leave.wait()
        async with ringfence.local(RULES) as made:
            yield made

    limiter = BlockingLimiter(slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limiter.check, "d", {"user": "a"})
        entered.wait()
        is_well = in_child(lambda: limiter.check("d", {"user": "a"}))
        leave.set()
        assert waiting.result()
    limiter.close()

    assert is_well


@forks
def test_a_forked_child_continues_after_it_drops_its_parents_limiter():
    def forget():
        import gc

        kept.clear()
        gc.collect()
        return True

    kept = [local(RULES)]
    kept[0].check("d", {"user": "a"})
    assert in_child(forget)
    kept[0].close()


def test_a_program_that_forks_and_exits_does_not_hang():
    code = f"""
import os, sys, ringfence.blocking as b
limiter = b.local({RULES_OF_USERS})
limiter.check('d', {{'user': 'a'}})
child = os.fork()
if child == 0:
    limiter.check('d', {{'user': 'a'}})
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_python(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
