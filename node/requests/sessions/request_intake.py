"""Requests of one session: when they are decoded, decided and answered.

A short request is decided immediately. A long request is decided in steps, when it is its sender's
turn. While requests of a client wait, its further requests wait undecoded. So a client that sends
at full rate does not delay other clients by the decoding of its frames.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from node.requests.deduplication import COUNTED_ONCE
from node.requests.request_parts import Part
from node.requests.sessions.caller import INTERNAL_ERROR, Caller, internal_refusal
from node.requests.sessions.node_api import NodeApi
from node.requests.sessions.permissions import Permissions
from node.requests.sessions.request_scheduler import DIRECT_COST, steps_of
from node.requests.sessions.sent_answers import Sender
from ringfence.errors import LocalProtocolError
from ringfence.limiter import NS_PER_SECOND
from ringfence.settings.token_file import Scope
from ringfence.transport.interface import Transport
from ringfence.wire import (
    Answer,
    Batch,
    CheckId,
    ErrorCode,
    Message,
    Op,
    Refused,
    Request,
    Results,
    Role,
    encode,
    peek_request,
)

__all__ = ["RequestIntake"]

_MAX_REFUSALS = 256
"""Waiting requests of a caller above which further ones are refused out of turn."""
_MAX_UNDECODED = 256
"""Waiting requests of a caller above which further ones are refused without being decoded."""
_LONG = 16 << 10
"""Bytes of a request above which decoding is a step of its own."""
_SCOPES = {
    Op.CHECK: Scope.CHECK,
    Op.REFUND: Scope.CHECK,
    Op.RESET: Scope.RESET,
    Op.CHARGE: Scope.CHECK,
    Op.RENEW: Scope.CHECK,
}

_IDENTIFIED = (Op.REFUND, Op.RESET)
"""Operations whose identities are stored, because another member may apply them, too."""


class RequestIntake:
    """Passes the requests of one caller to the node, and sends the answers."""

    def __init__(
        self,
        api: NodeApi,
        transport: Transport,
        caller: Caller,
        sender: Sender[Caller],
        permissions: Permissions,
        decode: Callable[[bytes], Message | None],
    ) -> None:
        """`decode` returns None for bytes that are not a message, after it has refused them."""
        self._api = api
        self._dispatcher = api.dispatcher
        self._caches = api.caches
        self._transport = transport
        self._caller = caller
        self._sender = sender
        self._permissions = permissions
        self._decode = decode

    # -- arrival -------------------------------------------------------------------------------

    def take(self, request: Request) -> None:
        """Decide a request immediately, or queue it until its sender's turn."""
        batch, sender = request.batch, self._sender
        if not self._is_accepted(request):
            return
        cost = self._dispatcher.cost_of(request)
        # A member's frames hold checks of many callers, so short ones need not wait for long ones.
        if cost > DIRECT_COST or (sender.waiting and self._permissions.role is Role.CLIENT):
            steps = self._decide_in_steps(request, cost, self._arrived())
            if self.wait_turn(request.seq, steps, len(batch)):
                sender.remember(request.seq, None)
            return
        now = sender.now()
        decided = self._dispatcher.decide(request, batch)
        if isinstance(decided, Refused):
            self._caller.send(decided)
        else:
            self._settle(request, batch, decided, now)

    def defer(self, payload: bytes) -> bool:
        """Queue a request of a client undecoded; return False for other messages.

        Called while earlier requests of the client wait.
        """
        if self._permissions.role is not Role.CLIENT:
            return False
        peeked = peek_request(payload)
        if peeked is None:
            return False
        seq, rows = peeked
        steps = self._decode_in_turn(payload, self._arrived())
        if self._sender.waiting < _MAX_UNDECODED:
            self.wait_turn(seq, steps, rows, len(payload))
        else:
            self._api.counters.refused("overloaded")
            self._refuse_overload(seq)
        return True

    def wait_turn(self, seq: int, steps: Iterator[None], rows: int, size: int = 0) -> bool:
        """Queue a request until its sender's turn, or refuse it; return whether it was queued."""
        if self._dispatcher.wait_turn(self._sender, steps, rows, size):
            return True
        # A caller that is refused immediately sends more, and each message takes time to read.
        steps = self._refuse_in_turn(seq)
        is_full = self._sender.waiting >= _MAX_REFUSALS
        if is_full or not self._dispatcher.wait_turn(self._sender, steps, 0):
            deque(steps, maxlen=0)
        return False

    def send_rules(self, seq: int) -> None:
        """Send the rules when it is the caller's turn, because up to a megabyte is copied."""
        self.wait_turn(seq, self._send_rules(seq), 1)

    def _arrived(self) -> float:
        return self._transport.now() - self._transport.held_up_ns / NS_PER_SECOND

    def _is_accepted(self, request: Request) -> bool:
        """Return whether a request is permitted and new.

        A request that is not permitted is refused. A repeated request gets its stored answers
        again.
        """
        seq, batch, sender = request.seq, request.batch, self._sender
        if not self._permissions.may(seq, _SCOPES[batch.op]):
            return False
        if request.hops and self._permissions.role is not Role.NODE:
            self._api.counters.refused(ErrorCode.NOT_PERMITTED.name.lower())
            reason = "only a node forwards"
            self._caller.send(Refused(0, ErrorCode.NOT_PERMITTED, reason))
            self._caller.close(ErrorCode.NOT_PERMITTED, reason)
            return False
        if not self._permissions.may_use(seq, sender, batch.keys):
            return False
        if sender.has_asked(seq):
            self._dispatcher.count_repeat()
            answers = sender.answers_to(seq)
            for answer in answers:
                self._caller.send_payload(answer)
            if answers:
                # Denials in the stored answers may have been revoked meanwhile.
                self._caches.revoke_denials(self._caller)
            return False
        is_first_ask = batch.op in COUNTED_ONCE and not batch.ids
        session = sender.identity[1]
        if is_first_ask and (
            batch.op in _IDENTIFIED or self._dispatcher.was_decided_elsewhere(session, seq)
        ):
            batch.ids = _ids(session, seq, range(len(batch)))
        if batch.op is Op.REFUND and sender.ledger is not None:
            self._api.access.count_excess_refund(sender.ledger.bound(batch))
        return True

    # -- in the sender's turn ------------------------------------------------------------------

    def _decode_in_turn(self, payload: bytes, arrived: float) -> Iterator[None]:
        """Decode a queued request, then decide and answer it in steps."""
        requests: list[Request] = []
        if self._caller.is_over:
            return  # The client repeats it on its next connection.
        if not self._api.containment.call("session", self._decode_one, payload, requests):
            peeked = peek_request(payload)
            self._caller.send(internal_refusal(0 if peeked is None else peeked[0]))
        if len(payload) > _LONG:
            yield
        for request in requests:
            cost = self._dispatcher.cost_of(request)
            self._sender.remember(request.seq, None)
            yield from self._decide_in_steps(request, cost, arrived)

    def _decode_one(self, payload: bytes, requests: list[Request]) -> None:
        message = self._decode(payload)
        if isinstance(message, Request) and self._is_accepted(message):
            requests.append(message)

    def _refuse_in_turn(self, seq: int) -> Iterator[None]:
        self._refuse_overload(seq)
        yield from ()

    def _refuse_overload(self, seq: int) -> None:
        if not self._caller.is_over:
            reason = "too many requests wait for their turn"
            self._caller.send(Refused(seq, ErrorCode.OVERLOADED, reason))

    def _send_rules(self, seq: int) -> Iterator[None]:
        if not self._caller.is_over:
            self._caller.send_payload(self._api.rules.packed(seq))
        yield from ()

    def _decide_in_steps(self, request: Request, cost: int, arrived: float) -> Iterator[None]:
        """Decide and answer a request in steps, until all is done or a step is refused."""
        batch = request.batch
        deadline_ns = request.deadline_ms * 1_000_000
        may_be_late = batch.op is Op.CHECK
        for step in steps_of(batch.groups, len(batch), cost):
            if step.start:
                yield
            waited_ns = round((self._transport.now() - arrived) * NS_PER_SECOND)
            is_late = may_be_late and waited_ns > deadline_ns
            rows = range(step.start, len(batch)) if is_late else step
            refused: list[Refused] = []
            decide = partial(self._decide_rows, request, rows, waited_ns, refused)
            if not self._api.containment.call("session", decide):
                self._api.counters.refused("internal")
                refused.append(internal_refusal(request.seq))
            if refused:
                payload = encode(refused[0])
                self._sender.remember(request.seq, payload)
                self._send(payload)
                return

    def _decide_rows(
        self, request: Request, rows: range, waited_ns: int, refused: list[Refused]
    ) -> None:
        seq, batch, session = request.seq, request.batch, self._sender.identity[1]
        part = batch.take(rows)
        is_first_ask = batch.op in COUNTED_ONCE and not batch.ids
        if is_first_ask and self._dispatcher.was_decided_elsewhere(session, seq):
            part.ids = _ids(session, seq, rows)
        now = self._sender.now()
        decided = self._dispatcher.decide(request, part, waited_ns)
        if isinstance(decided, Refused):
            refused.append(decided)
        else:
            place = None if len(rows) == len(batch) else rows
            self._settle(request, part, decided, now, place, waited_ns)

    # -- answers -------------------------------------------------------------------------------

    def _settle(
        self,
        request: Request,
        batch: Batch,
        decided: Results | list[Part],
        now: int,
        place: Sequence[int] | None = None,
        waited_ns: int | None = None,
    ) -> None:
        """Answer the decided parts of a request now; the other parts are decided and answered
        later.

        The decision is not older than the instant `now`. `place` has the positions of the batch's
        checks in the request; None when the batch is the whole request.
        """
        if isinstance(decided, Results):
            self._answer(request, batch, decided, None if place is None else list(place), now)
            return
        sender = self._sender
        is_first_ask = batch.op in COUNTED_ONCE and not batch.ids
        sender.remember(request.seq, None)
        for part in decided:
            if place is not None:
                rows = range(len(batch)) if part.rows is None else part.rows
                part.rows = [place[row] for row in rows]
            if part.is_decided and part.results is not None:
                self._answer(request, part.batch, part.results, part.rows, now)
            else:
                if is_first_ask:
                    rows = range(len(batch)) if part.rows is None else part.rows
                    part.batch.ids = _ids(sender.identity[1], request.seq, rows)
                self._dispatcher.forward(sender, request, part, waited_ns)

    def _answer(
        self, request: Request, batch: Batch, results: Results, rows: list[int] | None, now: int
    ) -> None:
        sender = self._sender
        payload = self._encoded(self._dispatcher.answer(request, results, rows))
        answered_at = sender.remember(request.seq, payload)
        self._send(payload)
        sender.note(batch, results, now)
        if batch.op in COUNTED_ONCE and not batch.ids:
            self._dispatcher.record_direct(sender, request, batch, rows, answered_at)
        if not self._caller.is_over:
            self._caches.record_denials(self._caller, batch, results)

    def _encoded(self, answer: Answer) -> bytes:
        """Encode an answer; when that fails, refuse only its request."""
        try:
            return encode(answer)
        except LocalProtocolError as error:
            self._api.containment.failed("encoding", error)
            self._api.counters.refused("internal")
            return encode(Refused(answer.seq, ErrorCode.INTERNAL, INTERNAL_ERROR))

    def _send(self, payload: bytes) -> None:
        """Send an answer on this connection, or on the caller's next connection when this one has
        ended."""
        caller = self._sender.session if self._caller.is_over else self._caller
        if caller is not None:
            caller.send_payload(payload)


def _ids(session: int, seq: int, rows: Iterable[int]) -> list[CheckId]:
    """Return the identities of a request's checks, which are sent along when it is forwarded."""
    return [(session, seq, row) for row in rows]
