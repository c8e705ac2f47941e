import anyio
import pytest

from ringfence.runtime import Event

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@BACKENDS
def test_a_waiting_task_continues_when_the_event_is_set(backend):
    async def run():
        event = Event()
        passed = []

        async def wait():
            await event.wait()
            passed.append(event.is_set())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert passed == []
            event.set()
        assert passed == [True]

    anyio.run(run, backend=backend)


@BACKENDS
def test_an_event_that_is_set_does_not_block(backend):
    async def run():
        event = Event()
        event.set()
        with anyio.fail_after(30):
            await event.wait()

    anyio.run(run, backend=backend)


@BACKENDS
def test_an_event_can_be_set_after_its_waiter_was_cancelled(backend):
    async def run():
        event = Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(event.wait)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        event.set()
        event.set()
        assert event.is_set()

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_waiter_that_is_woken_and_cancelled_at_once_ends(backend):
    async def run():
        event = Event()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(event.wait)
                await anyio.wait_all_tasks_blocked()
                event.set()
                tasks.cancel_scope.cancel()

    anyio.run(run, backend=backend)
