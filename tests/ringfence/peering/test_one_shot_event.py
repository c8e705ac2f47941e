import anyio
import pytest

from ringfence.peering.one_shot_event import OneShotEvent

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@BACKENDS
def test_a_waiting_task_continues_when_the_event_is_set(backend):
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
def test_an_event_that_is_set_does_not_block(backend):
    async def run():
        signal = OneShotEvent()
        signal.set()
        with anyio.fail_after(1):
            await signal.wait()

    anyio.run(run, backend=backend)


@BACKENDS
def test_an_event_can_be_set_after_its_waiter_was_cancelled(backend):
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
def test_a_waiter_that_is_woken_and_cancelled_at_once_ends(backend):
    async def run():
        signal = OneShotEvent()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(signal.wait)
                await anyio.wait_all_tasks_blocked()
                signal.set()
                tasks.cancel_scope.cancel()

    anyio.run(run, backend=backend)
