import anyio
import pytest

from ringfence.peering.one_shot_event import OneShotEvent

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@BACKENDS
def test_a_task_that_waits_goes_on_when_the_signal_is_set(backend):
    async def run():
        signal = OneShotEvent()
        passed = []

        async def wait():
            await signal.wait()
            passed.append(signal.is_set)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert passed == []
            signal.set()
        assert passed == [True]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_signal_that_is_set_already_keeps_nobody_waiting(backend):
    async def run():
        signal = OneShotEvent()
        signal.set()
        with anyio.fail_after(1):
            await signal.wait()

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_signal_whose_waiter_was_cancelled_can_still_be_set(backend):
    async def run():
        signal = OneShotEvent()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signal.wait)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        signal.set()
        signal.set()
        assert signal.is_set

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_waiter_that_is_set_and_cancelled_at_once_ends(backend):
    async def run():
        signal = OneShotEvent()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(signal.wait)
                await anyio.wait_all_tasks_blocked()
                signal.set()
                tasks.cancel_scope.cancel()

    anyio.run(run, backend=backend)
