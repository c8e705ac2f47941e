"""Checks that were decided under the identity of another request, so that each counts once.

The owner finds here what it decided for a second or a forwarded ask when the first one comes late,
and the other way round. What a node decided directly is remembered as the answer that it sent, in
`senders`; only repeats, which are few, have rows of their own here. Bounded in rows: the request
that was repeated longest ago is forgotten first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from ringfence.client.batch import CODE, Row, Verdicts
from ringfence.limiter import Code
from ringfence.wire import Answer, CheckId, DecidedCheck, Source, decode

__all__ = ["DecidedChecks"]

_DECIDED = (Source.OWNER, Source.STANDBY)
_LAST_CHARGED = Code.OVER_SOFT
_MOST_ROWS = 65_536
_REPEATED_WITHIN_NS = 60_000_000_000
"""Longest time that a check may be on its way: the largest deadline of the wire."""
_MOST_MOVED = 2000
"""Rows of one shard that move with it; the newest."""


class DecidedChecks:
    """Outcomes by the identity of the check."""

    def __init__(self, answer_to: Callable[[int, int], bytes | None]) -> None:
        """`answer_to` returns the answer that was sent to a request, by session and number."""
        self._answer_to = answer_to
        self._requests: OrderedDict[tuple[int, int], dict[int, tuple[DecidedCheck, int]]] = (
            OrderedDict()
        )
        """By session and number of the request: by row, the check and when it was decided."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def has_any_of(self, session: int, seq: int) -> bool:
        """Return whether a row of this request was decided on another path."""
        return (session, seq) in self._requests

    def find(self, ids: Sequence[CheckId]) -> dict[int, Row]:
        """Return the outcomes that are known, by index into `ids`."""
        found: dict[int, Row] = {}
        answers: dict[tuple[int, int], Verdicts | None] = {}
        for index, (session, seq, row) in enumerate(ids):
            if not seq:
                continue
            request = session, seq
            known = self._requests.get(request, {}).get(row)
            if known is not None:
                found[index] = known[0].row
                continue
            if request not in answers:
                answers[request] = self._answered(request)
            verdicts = answers[request]
            if verdicts is None or row >= len(verdicts.sources):
                continue
            if verdicts.sources[row] in _DECIDED:  # A policy's answer is no decision.
                found[index] = verdicts.row(row)
        return found

    def remember(self, id: CheckId, key: bytes, cost: int, row: Row, now: int) -> None:  # noqa: A002
        """Keep the outcome of a check that was decided at `now`."""
        session, seq, place = id
        if not seq:
            return
        rows = self._requests.setdefault((session, seq), {})
        self._size += place not in rows
        rows[place] = DecidedCheck(id, key, cost, 0, row), now
        while self._size > _MOST_ROWS:
            _, oldest = self._requests.popitem(last=False)
            self._size -= len(oldest)

    def of_shard(self, is_of_shard: Callable[[bytes], bool], now: int) -> list[DecidedCheck]:
        """List the checks whose repeats may still come, of the keys that `is_of_shard` selects."""
        found = [
            (check, at)
            for rows in self._requests.values()
            for check, at in rows.values()
            if now - at < _REPEATED_WITHIN_NS and is_of_shard(check.key)
        ]
        return [
            DecidedCheck(check.id, check.key, check.cost, max(0, now - at), check.row)
            for check, at in found[-_MOST_MOVED:]
        ]

    def merge(self, checks: Iterable[DecidedCheck], now: int) -> list[DecidedCheck]:
        """Take over what another node decided; return the checks that both nodes admitted."""
        doubles: list[DecidedCheck] = []
        for check in checks:
            known = self.find([check.id]).get(0)
            if known is not None:
                if max(known[CODE], check.row[CODE]) <= _LAST_CHARGED:
                    doubles.append(check)
            else:
                self.remember(check.id, check.key, check.cost, check.row, now - check.age_ns)
        return doubles

    def _answered(self, request: tuple[int, int]) -> Verdicts | None:
        payload = self._answer_to(*request)
        if payload is None:
            return None
        answer = decode(payload)
        return Verdicts(answer.outcomes, answer.sources) if isinstance(answer, Answer) else None
