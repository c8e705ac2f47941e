"""Recent answers by sender, so that a repeated request counts once.

The number of senders and the bytes are bounded: the least recently active sender is forgotten
first.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from node.requests.refunds.refund_ledger import RefundLedger
from ringfence.wire import Batch, Op, Results, Role

__all__ = ["Sender", "SentAnswers"]

_REMEMBERED = 512
"""Answers kept per sender, twice the frames a link has in flight."""
_REMEMBERED_BYTES = 4 << 20
"""Bytes of answers kept per sender, more than all the checks that a link has in flight."""
_MAX_SENDERS = 8192
_MAX_BYTES = 64 << 20

SessionT = TypeVar("SessionT")


class Sender(Generic[SessionT]):
    """One process that sends requests, with its recent answers; it outlives single connections."""

    def __init__(self, senders: "SentAnswers[SessionT]", identity: tuple[str, int, Role]) -> None:
        self.session: SessionT | None = None
        """Its present connection, if any."""
        self.identity = identity
        self.size = 0
        """Bytes of the answers that are kept."""
        self.waiting = 0
        """Requests that wait for their turn."""
        self.ledger: RefundLedger | None = None
        """Recent charges of its token; None when its refunds have no bound."""
        self._senders = senders
        self._answers: OrderedDict[int, tuple[tuple[bytes, ...], int]] = OrderedDict()
        """By number of the request: its answers so far, and when the last one was given."""

    def has_asked(self, seq: int) -> bool:
        """Whether this request was received before; then it must not be counted again."""
        return seq in self._answers

    def answers_to(self, seq: int) -> tuple[bytes, ...]:
        """Return the answers so far to a request that was received before; empty while all its
        checks wait."""
        return self._answers[seq][0]

    def find(self, seq: int) -> tuple[tuple[bytes, ...], int]:
        """Return the stored answers to a request and the time of the last one; empty for an unknown
        request."""
        return self._answers.get(seq, ((), 0))

    def remember(self, seq: int, answer: bytes | None) -> int:
        """Store a request or one more answer to it, and return the instant; the oldest requests
        are dropped."""
        before = self.size
        answers, _ = self._answers.get(seq, ((), 0))
        if answer is not None:
            answers = (*answers, answer)
            self.size += len(answer)
        now = self._senders.clock()
        self._answers[seq] = answers, now
        while len(self._answers) > _REMEMBERED or self.size > _REMEMBERED_BYTES:
            _, (forgotten, _) = self._answers.popitem(last=False)
            self.size -= sum(map(len, forgotten))
        self._senders.on_growth(self, self.size - before)
        return now

    def now(self) -> int:
        """Return the instant before a decision, as `note` needs it."""
        return 0 if self.ledger is None else self.ledger.now()

    def note(self, batch: Batch, results: Results, now: int) -> None:
        """Record what the sender was charged, not before `now`, because it may refund at most
        that."""
        if self.ledger is not None and batch.op in (Op.CHECK, Op.CHARGE):
            self.ledger.charged(batch, results, now)
        elif self.ledger is not None and batch.op is Op.RENEW:
            self.ledger.renewed(batch, results)

    def forget(self) -> None:
        """Forget all stored requests and answers of this sender."""
        self._answers.clear()
        self.size = 0


class SentAnswers(Generic[SessionT]):
    """Stored answers of all senders, the least recently active sender first."""

    def __init__(
        self,
        most: int = _MAX_SENDERS,
        most_bytes: int = _MAX_BYTES,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.size = 0
        """Bytes of all answers that are kept."""
        self._most = most
        self._most_bytes = most_bytes
        self.clock = clock
        """Clock of the answers, in ns."""
        self._senders: OrderedDict[tuple[str, int, Role], Sender[SessionT]] = OrderedDict()
        self._by_session: dict[int, Sender[SessionT]] = {}

    def __len__(self) -> int:
        return len(self._senders)

    def of(self, role: Role, name: str, session: int) -> Sender[SessionT]:
        """Return the stored answers of a process, given its role, name and session; create them if
        needed.

        A client whose token has the name of a node does not share the answers of that node.
        """
        identity = (name, session, role)
        sender = self._senders.get(identity)
        if sender is None:
            sender = Sender(self, identity)
        self.on_growth(sender, 0)
        return sender

    def find(self, session: int, seq: int) -> tuple[tuple[bytes, ...], int]:
        """Return the stored answers to a request and the time of the last one; empty for an unknown
        request."""
        sender = self._by_session.get(session)
        return ((), 0) if sender is None else sender.find(seq)

    def on_growth(self, sender: Sender[SessionT], growth: int) -> None:
        """Mark a sender as most recently active; above the memory bounds, forget the least recently
        active ones."""
        if self._senders.setdefault(sender.identity, sender) is not sender:
            sender.forget()  # Another object replaced this one after it was dropped.
            return
        self._senders.move_to_end(sender.identity)
        self._by_session[sender.identity[1]] = sender
        self.size += growth
        while len(self._senders) > self._most or self.size > self._most_bytes:
            _, silent = self._senders.popitem(last=False)
            self.size -= silent.size
            silent.forget()
            if self._by_session.get(silent.identity[1]) is silent:
                del self._by_session[silent.identity[1]]
