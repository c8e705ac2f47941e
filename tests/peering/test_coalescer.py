import anyio
import pytest

from ringfence.errors import AccessDenied
from ringfence.limiter import Code, Outcomes
from ringfence.peering.coalescer import new_pending_batch
from ringfence.peering.target import SHED, TimedOut
from ringfence.wire import Results, Source

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def verdicts(*codes):
    rows = len(codes)
    numbers = [[0] * rows for _ in range(4)]
    return Results(
        Outcomes(list(codes), [10] * rows, list(range(rows)), *numbers),
        [Source.OWNER.value] * rows,
    )


class GivenBack:
    """Hears what is to be given back."""

    def __init__(self):
        self.keys = []

    def __call__(self, batch, rows, verdicts, asked_at):
        self.keys += [batch.keys[row] for row in rows]


async def waiting(crowd, keys, tasks, given_back):
    """Let a task per key join and wait; what each is told goes into the dictionary returned."""
    told = {}

    async def wait(key):
        crowd.join(key, 1)
        told[key] = await crowd.wait(given_back)

    for key in keys:
        tasks.start_soon(wait, key)
        await anyio.wait_all_tasks_blocked()
    return told


@BACKENDS
def test_each_caller_is_told_its_own_row(backend):
    async def run():
        crowd = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b", b"c"], tasks, GivenBack())
            assert crowd.batch.keys == [b"a", b"b", b"c"]
            assert told == {}
            crowd.resolve(verdicts(Code.ALLOWED, Code.DENIED, Code.ALLOWED))
        assert {key: row[0] for key, row in told.items()} == {b"a": 0, b"b": 2, b"c": 0}
        assert {key: row[2] for key, row in told.items()} == {b"a": 0, b"b": 1, b"c": 2}

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize("answer", [None, AccessDenied("the token lacks the scope")])
def test_all_are_told_when_there_is_no_verdict(backend, answer):
    async def run():
        crowd = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b"], tasks, GivenBack())
            crowd.resolve(answer)
        assert told == {b"a": answer, b"b": answer}

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_caller_that_joins_what_is_answered_at_once_need_not_wait(backend):
    async def run():
        crowd = new_pending_batch(0.0, 100)
        crowd.join(b"a", 1)
        crowd.resolve(verdicts(Code.ALLOWED))
        with anyio.fail_after(1):
            assert (await crowd.wait(GivenBack()))[0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_what_was_charged_for_callers_that_were_cancelled_is_given_back(backend):
    async def run():
        crowd, given_back = new_pending_batch(0.0, 100), GivenBack()
        async with anyio.create_task_group() as others:
            stays = await waiting(crowd, [b"a"], others, given_back)
            async with anyio.create_task_group() as tasks:
                told = await waiting(crowd, [b"b", b"c"], tasks, given_back)
                tasks.cancel_scope.cancel()
            stays |= await waiting(crowd, [b"d"], others, given_back)
            assert given_back.keys == []
            crowd.resolve(verdicts(Code.ALLOWED, Code.ALLOWED, Code.DENIED, Code.OVER_SOFT))
        assert told == {}
        assert given_back.keys == [b"b"]
        assert stays[b"a"][2] == 0

    anyio.run(run, backend=backend)


@BACKENDS
def test_nothing_is_given_back_for_cancelled_callers_that_nobody_charged(backend):
    async def run():
        crowd, given_back = new_pending_batch(0.0, 100), GivenBack()
        async with anyio.create_task_group() as tasks:
            await waiting(crowd, [b"a"], tasks, given_back)
            tasks.cancel_scope.cancel()
        crowd.resolve(None)
        assert given_back.keys == []

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_caller_cancelled_just_as_it_is_answered_either_knows_or_is_given_back(backend):
    async def run():
        crowd, given_back = new_pending_batch(0.0, 100), GivenBack()
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a"], tasks, given_back)
            crowd.resolve(verdicts(Code.ALLOWED))
            tasks.cancel_scope.cancel()
        assert [*told, *given_back.keys] == [b"a"]

    anyio.run(run, backend=backend)


@BACKENDS
def test_who_is_late_goes_on_and_may_hear_the_answer_all_the_same(backend):
    async def run():
        crowd, given_back, heard = new_pending_batch(0.0, 100), GivenBack(), []
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b"], tasks, given_back)
            crowd.be_late()
        assert [type(each) for each in told.values()] == [TimedOut, TimedOut]
        told[b"b"].when_answered(heard.append)
        crowd.resolve(verdicts(Code.ALLOWED, Code.DENIED))
        assert [each.outcomes.codes for each in heard] == [[Code.DENIED]]
        assert given_back.keys == []

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize("answer", [verdicts(Code.ALLOWED, Code.DENIED), SHED, None])
def test_an_answer_that_comes_before_a_late_task_could_ask_for_it_is_heard(backend, answer):
    async def run():
        crowd, heard = new_pending_batch(0.0, 100), []
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b"], tasks, GivenBack())
            crowd.be_late()
            crowd.resolve(answer)
        told[b"b"].when_answered(heard.append)
        if isinstance(answer, Results):
            assert [each.outcomes.codes for each in heard] == [[Code.DENIED]]
        else:
            assert heard == [answer]

    anyio.run(run, backend=backend)


@BACKENDS
def test_what_is_shed_is_told_to_all_who_joined_and_who_join(backend):
    async def run():
        crowd, heard = new_pending_batch(0.0, 100), []
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b"], tasks, GivenBack())
            crowd.resolve(SHED)
            told |= await waiting(crowd, [b"c"], tasks, GivenBack())
        assert [each.is_shed for each in told.values()] == [True] * 3
        told[b"c"].when_answered(heard.append)
        assert heard == [SHED]

    anyio.run(run, backend=backend)


@BACKENDS
def test_who_joins_a_late_crowd_is_answered_with_it(backend):
    async def run():
        crowd = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            early = await waiting(crowd, [b"a"], tasks, GivenBack())
            crowd.be_late()
            later = await waiting(crowd, [b"b"], tasks, GivenBack())
            crowd.resolve(None)
        assert isinstance(early[b"a"], TimedOut)
        assert later == {b"b": None}

    anyio.run(run, backend=backend)


@BACKENDS
def test_what_is_answered_is_not_late(backend):
    async def run():
        crowd = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a"], tasks, GivenBack())
            crowd.resolve(verdicts(Code.ALLOWED))
            crowd.be_late()
        assert told[b"a"][0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_caller_whose_row_is_answered_first_does_not_wait_for_the_others(backend):
    async def run():
        crowd, given_back = new_pending_batch(0.0, 100), GivenBack()
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b", b"c"], tasks, given_back)
            crowd.resolve_rows([0, 2], verdicts(Code.ALLOWED, Code.DENIED))
            await anyio.wait_all_tasks_blocked()
            assert {key: row[0] for key, row in told.items()} == {b"a": 0, b"c": 2}
            assert not crowd.is_answered
            crowd.resolve_rows([1], verdicts(Code.OVER_SOFT))
        assert told[b"b"][0] == Code.OVER_SOFT
        assert crowd.is_answered

    anyio.run(run, backend=backend)


@BACKENDS
def test_only_callers_without_a_row_are_told_that_there_is_none(backend):
    async def run():
        crowd = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b"], tasks, GivenBack())
            crowd.resolve_rows([1], verdicts(Code.ALLOWED))
            crowd.resolve(None)
        assert told[b"a"] is None
        assert told[b"b"][0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_what_cancelled_callers_were_charged_row_by_row_is_given_back(backend):
    async def run():
        crowd, given_back = new_pending_batch(0.0, 100), GivenBack()
        async with anyio.create_task_group() as others:
            stays = await waiting(crowd, [b"a"], others, given_back)
            async with anyio.create_task_group() as tasks:
                await waiting(crowd, [b"b", b"c"], tasks, given_back)
                tasks.cancel_scope.cancel()
            crowd.resolve_rows([1], verdicts(Code.ALLOWED))
            assert given_back.keys == [b"b"]
            crowd.resolve_rows([0, 2], verdicts(Code.ALLOWED, Code.DENIED))
        assert given_back.keys == [b"b"]
        assert stays[b"a"][0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_late_caller_hears_its_row_whenever_it_comes(backend):
    async def run():
        crowd, heard = new_pending_batch(0.0, 100), []
        async with anyio.create_task_group() as tasks:
            told = await waiting(crowd, [b"a", b"b", b"c"], tasks, GivenBack())
            crowd.be_late()
        told[b"a"].when_answered(heard.append)
        crowd.resolve_rows([0, 1], verdicts(Code.DENIED, Code.ALLOWED))
        told[b"b"].when_answered(heard.append)
        assert [each.outcomes.codes for each in heard] == [[Code.DENIED], [Code.ALLOWED]]
        crowd.resolve(None)
        told[b"c"].when_answered(heard.append)
        assert heard[2:] == [None]

    anyio.run(run, backend=backend)
