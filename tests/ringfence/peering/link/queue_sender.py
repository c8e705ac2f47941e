"""Request queue whose frames a test reads."""

from ringfence.limiter import Outcomes
from ringfence.peering.link.request_queue import RequestQueue
from ringfence.peering.link.settings import LinkSettings
from ringfence.wire import (
    Answer,
    AskMembers,
    Batch,
    Op,
    Results,
    decode,
)

TIMEOUT = 0.5
VIEW = 11
SESSION = 77


def raise_(error):
    raise error


class Sender:
    """Request queue, with the bytes that it sent."""

    def __init__(self, **limits):
        self.queue = RequestQueue(
            LinkSettings(answer_timeout=TIMEOUT, **limits), lambda: VIEW, SESSION, raise_
        )
        self.in_flight = self.queue.in_flight
        self.sent = []

    def ask(self, *names, now=0.0, op=Op.CHECK):
        received = []
        self.queue.add(batch_of(*names, op=op), 0, False, received.append, now)
        return received

    def call(self, make=AskMembers, now=0.0, timeout=TIMEOUT):
        received = []
        self.queue.add_call(make, received.append, now, timeout)
        return received

    def flush(self, now=0.0):
        """Send and return the waiting messages."""
        before = len(self.sent)
        self.queue.flush(now, self.sent.append)
        return [decode(payload) for payload in self.sent[before:]]


def batch_of(*names, op=Op.CHECK):
    keys = [name.encode().rjust(8) for name in names]
    return Batch(op, keys, [1] * len(keys))


def answer_to(seq, rows):
    columns = [[0] * rows for _ in range(7)]
    return Answer(seq, VIEW, 1, Results(Outcomes(*columns), [0] * rows))
