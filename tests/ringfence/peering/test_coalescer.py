import anyio
import anyio.lowlevel
import pytest

from ringfence.errors import AccessDenied
from ringfence.limiter import Code, Outcomes
from ringfence.peering.coalescer import new_pending_batch
from ringfence.peering.target import SHED, StartedCheck, TimedOut
from ringfence.wire import Results, Source

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def results(*codes, slot=0):
    rows = len(codes)
    numbers = [[0] * rows for _ in range(3)]
    return Results(
        Outcomes(list(codes), [10] * rows, list(range(rows)), *numbers, [slot] * rows),
        [Source.OWNER.value] * rows,
    )


class FakeRouter:
    """Records refunds, decides shed checks, and returns other answers that decide nothing."""

    def __init__(self, code=Code.ALLOWED):
        self.code = code
        self.shed = []
        self.refunds = []
        """Keys of each refund."""

    @property
    def refunded(self):
        return [key for keys in self.refunds for key in keys]

    def refund(self, batch, rows, results, asked_at):
        self.refunds.append([batch.keys[row] for row in rows])

    async def ask_again(self, key, cost, asked, late, within):
        if late is None or not late.is_shed:
            return late
        self.shed.append((key, late))
        await anyio.lowlevel.checkpoint()
        return results(self.code).row(0)


async def join(pending, keys, tasks, router):
    """Let a task per key join and wait; return the dictionary that receives their answers."""
    answers = {}

    async def wait(key):
        pending.join(key, 1)
        try:
            answers[key] = await pending.wait(router, None)
        except AccessDenied as refusal:
            answers[key] = refusal

    for key in keys:
        tasks.start_soon(wait, key)
        await anyio.wait_all_tasks_blocked()
    return answers


async def time_out(pending, *keys):
    """Let a task per key join and wait until its time-out; return their answers."""
    async with anyio.create_task_group() as tasks:
        answers = await join(pending, keys, tasks, FakeRouter())
        pending.mark_late()
    return answers


@BACKENDS
def test_each_task_gets_the_outcome_of_its_own_row(backend):
    async def run():
        pending = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a", b"b", b"c"], tasks, FakeRouter())
            assert pending.batch.keys == [b"a", b"b", b"c"]
            assert answers == {}
            pending.resolve(results(Code.ALLOWED, Code.DENIED, Code.ALLOWED))
        assert {key: row[0] for key, row in answers.items()} == {b"a": 0, b"b": 2, b"c": 0}
        assert {key: row[2] for key, row in answers.items()} == {b"a": 0, b"b": 1, b"c": 2}

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize("answer", [None, AccessDenied("the token lacks the scope")])
def test_every_task_receives_the_failure_of_the_batch(backend, answer):
    async def run():
        pending = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a", b"b"], tasks, FakeRouter())
            pending.resolve(answer)
        assert answers == {b"a": answer, b"b": answer}

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_task_does_not_wait_for_a_batch_answered_at_once(backend):
    async def run():
        pending = new_pending_batch(0.0, 100)
        pending.join(b"a", 1)
        pending.resolve(results(Code.ALLOWED))
        with anyio.fail_after(30):
            assert (await pending.wait(FakeRouter(), None))[0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_charges_of_cancelled_tasks_are_refunded(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as others:
            stays = await join(pending, [b"a"], others, router)
            async with anyio.create_task_group() as tasks:
                answers = await join(pending, [b"b", b"c"], tasks, router)
                tasks.cancel_scope.cancel()
            stays |= await join(pending, [b"d"], others, router)
            assert router.refunded == []
            pending.resolve(results(Code.ALLOWED, Code.ALLOWED, Code.DENIED, Code.OVER_SOFT))
        assert answers == {}
        assert router.refunded == [b"b"]
        assert stays[b"a"][2] == 0

    anyio.run(run, backend=backend)


@BACKENDS
def test_cancelled_tasks_without_a_charge_get_no_refund(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as tasks:
            await join(pending, [b"a"], tasks, router)
            tasks.cancel_scope.cancel()
        pending.resolve(None)
        assert router.refunded == []

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_task_cancelled_while_answered_gets_its_outcome_or_a_refund(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a"], tasks, router)
            pending.resolve(results(Code.ALLOWED))
            tasks.cancel_scope.cancel()
        assert [*answers, *router.refunded] == [b"a"]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_late_task_continues_and_can_still_get_the_answer(backend):
    async def run():
        pending, router, late = new_pending_batch(0.0, 100), FakeRouter(), []
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a", b"b"], tasks, router)
            pending.mark_late()
        assert [type(each) for each in answers.values()] == [TimedOut, TimedOut]
        answers[b"b"].when_answered(late.append)
        pending.resolve(results(Code.ALLOWED, Code.DENIED))
        assert [each.outcomes.codes for each in late] == [[Code.DENIED]]
        assert router.refunded == []

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize("answer", [results(Code.ALLOWED, Code.DENIED), SHED, None])
def test_an_answer_before_the_late_task_registers_reaches_it(backend, answer):
    async def run():
        pending, late = new_pending_batch(0.0, 100), []
        answers = await time_out(pending, b"a", b"b")
        pending.resolve(answer)
        answers[b"b"].when_answered(late.append)
        if isinstance(answer, Results):
            assert [each.outcomes.codes for each in late] == [[Code.DENIED]]
        else:
            assert late == [answer]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_shed_batch_sheds_tasks_that_join_before_and_after(backend):
    async def run():
        pending, router, late = new_pending_batch(0.0, 100), FakeRouter(), []
        async with anyio.create_task_group() as tasks:
            await join(pending, [b"a", b"b"], tasks, router)
            pending.resolve(SHED)
            await join(pending, [b"c"], tasks, router)
        assert sorted(key for key, _ in router.shed) == [b"a", b"b", b"c"]
        router.shed[0][1].when_answered(late.append)
        assert late == [SHED]

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize(
    ("decided", "slot", "is_refunded"),
    [(Code.DENIED, 0, True), (Code.ALLOWED, 0, False), (Code.OVER_SOFT, 5, True)],
)
@pytest.mark.parametrize("by_row", [True, False])
def test_late_charges_of_shed_checks_that_were_not_allowed_are_refunded_at_once(
    backend, decided, slot, is_refunded, by_row
):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter(decided)
        async with anyio.create_task_group() as tasks:
            await join(pending, [b"a", b"b", b"c"], tasks, router)
            pending.resolve(SHED)
        late = results(Code.ALLOWED, Code.DENIED, Code.OVER_SOFT, slot=slot)
        if by_row:
            pending.resolve_rows([0, 1, 2], late)
        else:
            pending.resolve(late)
        assert router.refunds == [[b"a", b"c"]] * is_refunded

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_shed_check_that_is_cancelled_meanwhile_is_refunded(backend, is_answered):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as tasks:
            await join(pending, [b"a"], tasks, router)
            pending.resolve(SHED)
            if is_answered:
                pending.resolve_rows([0], results(Code.ALLOWED))
            tasks.cancel_scope.cancel()
        if not is_answered:
            pending.resolve_rows([0], results(Code.ALLOWED))
        assert router.refunds == [[b"a"]]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_late_task_gets_its_answer_after_its_batch_was_shed(backend):
    async def run():
        pending, late = new_pending_batch(0.0, 100), []
        answers = await time_out(pending, b"a")
        pending.resolve(SHED)
        answers[b"a"].when_answered(late.append)
        pending.resolve_rows([0], results(Code.ALLOWED))
        assert late[0] is SHED
        assert late[1].outcomes.codes == [Code.ALLOWED]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_task_that_joins_a_late_batch_is_answered_with_it(backend):
    async def run():
        pending = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            early = await join(pending, [b"a"], tasks, FakeRouter())
            pending.mark_late()
            later = await join(pending, [b"b"], tasks, FakeRouter())
            pending.resolve(None)
        assert isinstance(early[b"a"], TimedOut)
        assert later == {b"b": None}

    anyio.run(run, backend=backend)


@BACKENDS
def test_an_answered_batch_does_not_time_out(backend):
    async def run():
        pending = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a"], tasks, FakeRouter())
            pending.resolve(results(Code.ALLOWED))
            pending.mark_late()
        assert answers[b"a"][0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_task_does_not_wait_for_the_rows_of_others(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a", b"b", b"c"], tasks, router)
            pending.resolve_rows([0, 2], results(Code.ALLOWED, Code.DENIED))
            await anyio.wait_all_tasks_blocked()
            assert {key: row[0] for key, row in answers.items()} == {b"a": 0, b"c": 2}
            assert not pending.is_answered
            pending.resolve_rows([1], results(Code.OVER_SOFT))
        assert answers[b"b"][0] == Code.OVER_SOFT
        assert pending.is_answered

    anyio.run(run, backend=backend)


@BACKENDS
def test_only_tasks_without_an_outcome_receive_the_failure(backend):
    async def run():
        pending = new_pending_batch(0.0, 100)
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a", b"b"], tasks, FakeRouter())
            pending.resolve_rows([1], results(Code.ALLOWED))
            pending.resolve(None)
        assert answers[b"a"] is None
        assert answers[b"b"][0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_charges_of_cancelled_tasks_are_refunded_row_by_row(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as others:
            stays = await join(pending, [b"a"], others, router)
            async with anyio.create_task_group() as tasks:
                await join(pending, [b"b", b"c"], tasks, router)
                tasks.cancel_scope.cancel()
            pending.resolve_rows([1], results(Code.ALLOWED))
            assert router.refunded == [b"b"]
            pending.resolve_rows([0, 2], results(Code.ALLOWED, Code.DENIED))
        assert router.refunded == [b"b"]
        assert stays[b"a"][0] == Code.ALLOWED

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_late_task_gets_its_row_at_any_time(backend):
    async def run():
        pending, late = new_pending_batch(0.0, 100), []
        answers = await time_out(pending, b"a", b"b", b"c")
        answers[b"a"].when_answered(late.append)
        pending.resolve_rows([0, 1], results(Code.DENIED, Code.ALLOWED))
        answers[b"b"].when_answered(late.append)
        assert [each.outcomes.codes for each in late] == [[Code.DENIED], [Code.ALLOWED]]
        pending.resolve(None)
        answers[b"c"].when_answered(late.append)
        assert late[2:] == [None]

    anyio.run(run, backend=backend)


class FakeCheck(StartedCheck):
    """A check without a task, which records its answers."""

    def __init__(self, pending, key, router):
        self.answers = []
        pending.join(key, 1)
        pending.add_callback(self, router, None)

    def on_answer(self, answer):
        self.answers.append(answer)


@BACKENDS
def test_a_check_without_a_task_gets_the_outcome_of_its_own_row(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as tasks:
            first = FakeCheck(pending, b"a", router)
            answers = await join(pending, [b"b"], tasks, router)
            last = FakeCheck(pending, b"c", router)
            pending.resolve(results(Code.ALLOWED, Code.DENIED, Code.OVER_SOFT))
        assert [row[0] for row in first.answers + last.answers] == [0, 1]
        assert answers[b"b"][0] == Code.DENIED
        assert await first.settle(first.answers[0]) == first.answers[0]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_check_without_a_task_gets_one_answer_and_can_settle_it(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        late, refused = FakeCheck(pending, b"a", router), FakeCheck(pending, b"b", router)
        pending.mark_late()
        pending.resolve(results(Code.ALLOWED, Code.ALLOWED))
        [answer] = late.answers
        assert isinstance(answer, TimedOut)
        assert await late.settle(answer) is answer
        with pytest.raises(AccessDenied):
            await refused.settle(AccessDenied("the token lacks the scope"))

    anyio.run(run, backend=backend)


@BACKENDS
def test_the_charge_of_a_cancelled_check_without_a_task_is_refunded(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        early, stays, by_row, late = [
            FakeCheck(pending, key, router) for key in (b"a", b"b", b"c", b"d")
        ]
        early.cancel()
        by_row.cancel()
        pending.resolve_rows([2], results(Code.ALLOWED))
        assert router.refunded == [b"c"]
        pending.mark_late()
        late.cancel()
        pending.resolve(results(Code.ALLOWED, Code.ALLOWED, Code.ALLOWED, Code.ALLOWED))
        assert router.refunded == [b"c", b"a", b"d"]
        assert (early.answers, by_row.answers) == ([], [])
        assert [len(each.answers) for each in (stays, late)] == [1, 1]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_check_without_a_task_that_joins_a_shed_batch_is_answered_at_once(backend):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        pending.join(b"a", 1)
        pending.resolve(SHED)
        assert FakeCheck(pending, b"b", router).answers[0].is_shed

    anyio.run(run, backend=backend)


class Sent:
    """A batch in the queue of a link, which may have an identity."""

    def __init__(self, identity):
        self.identity = identity
        self.on_rows = None

    def identify(self):
        return self.identity


@BACKENDS
@pytest.mark.parametrize("identity", [None, (7, 1, 0)])
def test_without_an_answer_only_sent_checks_can_still_be_answered(backend, identity):
    async def run():
        pending = new_pending_batch(0.0, 100)
        pending.sent = Sent(identity)
        async with anyio.create_task_group() as tasks:
            answers = await join(pending, [b"a", b"b"], tasks, FakeRouter())
            pending.resolve(None)
        if identity is None:
            assert answers == {b"a": None, b"b": None}
            return
        late = []
        for row, key in enumerate((b"a", b"b")):
            answer = answers[key]
            assert isinstance(answer, TimedOut)
            assert (answer.sent, answer.row, answer.is_given_up) == (pending.sent, row, True)
            answer.when_answered(late.append)
        assert late == [None, None]
        pending.resolve(results(Code.DENIED, Code.ALLOWED))
        assert [each.outcomes.codes for each in late[2:]] == [[Code.DENIED], [Code.ALLOWED]]

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_late_task_still_expects_its_answer(backend):
    async def run():
        pending = new_pending_batch(0.0, 100)
        pending.sent = Sent((7, 1, 0))
        answers = await time_out(pending, b"a")
        answer = answers[b"a"]
        assert (answer.sent, answer.row, answer.is_given_up) == (pending.sent, 0, False)

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize(
    ("code", "is_refunded"),
    [(Code.ALLOWED, True), (Code.OVER_SOFT, True), (Code.DENIED, False), (Code.NEVER, False)],
)
@pytest.mark.parametrize("by_row", [True, False])
def test_only_the_charge_of_a_cancelled_task_is_refunded(backend, code, is_refunded, by_row):
    async def run():
        pending, router = new_pending_batch(0.0, 100), FakeRouter()
        async with anyio.create_task_group() as tasks:
            await join(pending, [b"a"], tasks, router)
            tasks.cancel_scope.cancel()
        if by_row:
            pending.resolve_rows([0], results(code))
        else:
            pending.resolve(results(code))
        assert router.refunded == [b"a"] * is_refunded

    anyio.run(run, backend=backend)
