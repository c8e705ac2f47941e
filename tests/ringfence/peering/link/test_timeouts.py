from ringfence.peering.coalescer import PendingBatch
from ringfence.peering.link.timeouts import TimeoutWatcher


class EmptyBatch(PendingBatch):
    """Pending batch without tasks."""

    async def wait(self, router, within):
        raise NotImplementedError

    def _wake(self, answers):
        pass

    def _wake_rows(self, answers):
        raise NotImplementedError


class Clock:
    """Fake clock that makes planned calls."""

    def __init__(self):
        self.time = 0.0
        self.planned = []

    def now(self):
        return self.time

    def call_at(self, when, call):
        timer = Planned(when, call)
        self.planned.append(timer)
        return timer

    def advance(self, to):
        self.time = to
        due = [each for each in self.planned if each.when <= to]
        self.planned = [each for each in self.planned if each.when > to]
        for each in due:
            each.call()


class Planned:
    def __init__(self, when, call):
        self.when = when
        self.call = call

    def cancel(self):
        self.call = lambda: None


def test_each_batch_is_late_after_its_own_time_out():
    clock = Clock()
    watcher = TimeoutWatcher(clock)
    batches = [EmptyBatch(0.0, 9), EmptyBatch(0.002, 9), EmptyBatch(0.003, 9)]
    for pending, within in zip(batches, (0.007, 0.001, 0.007), strict=True):
        watcher.watch(pending, within)

    seen = []
    for instant in (0.001, 0.003, 0.0065, 0.008, 0.02):
        clock.advance(instant)
        seen.append([pending.is_late for pending in batches])

    assert seen == [
        [False, False, False],
        [False, True, False],
        [False, True, False],
        [True, True, False],
        [True, True, True],
    ]


def test_the_shortest_time_out_of_a_batch_counts():
    clock = Clock()
    watcher, pending = TimeoutWatcher(clock), EmptyBatch(0.0, 9)
    for within in (0.007, 0.001, 0.005):
        watcher.watch(pending, within)

    clock.advance(0.002)

    assert pending.is_late


def test_an_answered_batch_is_forgotten_and_never_late():
    clock = Clock()
    watcher, pending = TimeoutWatcher(clock), EmptyBatch(0.0, 9)
    watcher.watch(pending, 0.007)
    pending.resolve(None)

    clock.advance(0.01)

    assert not pending.is_late
    assert clock.planned == []
