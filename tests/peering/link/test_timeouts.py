from ringfence.peering.coalescer import PendingBatch
from ringfence.peering.link.timeouts import TimeoutWatcher


class Quiet(PendingBatch):
    """A crowd whose tasks do not matter."""

    async def wait(self, give_back):
        raise NotImplementedError

    def _wake(self, answers):
        pass

    def _wake_some(self, answers):
        raise NotImplementedError


class Clock:
    """Time, and the calls planned on it."""

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


def test_each_crowd_is_late_when_its_own_time_is_over():
    clock = Clock()
    impatience, crowds = TimeoutWatcher(clock), [Quiet(0.0, 9), Quiet(0.002, 9), Quiet(0.003, 9)]
    for crowd, within in zip(crowds, (0.007, 0.001, 0.007), strict=True):
        impatience.watch(crowd, within)

    seen = []
    for instant in (0.001, 0.003, 0.0065, 0.008, 0.02):
        clock.advance(instant)
        seen.append([crowd.is_late for crowd in crowds])

    assert seen == [
        [False, False, False],
        [False, True, False],
        [False, True, False],
        [True, True, False],
        [True, True, True],
    ]


def test_the_least_patient_of_a_crowd_settles_it():
    clock = Clock()
    impatience, crowd = TimeoutWatcher(clock), Quiet(0.0, 9)
    for within in (0.007, 0.001, 0.005):
        impatience.watch(crowd, within)

    clock.advance(0.002)

    assert crowd.is_late


def test_what_was_answered_is_forgotten_and_never_late():
    clock = Clock()
    impatience, crowd = TimeoutWatcher(clock), Quiet(0.0, 9)
    impatience.watch(crowd, 0.007)
    crowd.resolve(None)

    clock.advance(0.01)

    assert not crowd.is_late
    assert clock.planned == []
