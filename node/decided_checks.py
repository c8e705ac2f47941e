"""Checks that were decided under the identity of another request, so that each counts once.

The owner finds here what it decided for a second or a forwarded ask when the first one comes late,
and the other way round. What a node decided directly is remembered as the answer that it sent, in
`senders`; only repeats, which are few, have rows of their own here. Bounded in rows: the request
that was repeated longest ago is forgotten first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hashring import shard_of
from ringfence.client.batch import CODE, Row, Verdicts
from ringfence.limiter import Code
from ringfence.wire import Answer, CheckId, DecidedCheck, Source, decode

__all__ = ["DecidedChecks"]

_DECIDED = (Source.OWNER, Source.STANDBY)
_LAST_CHARGED = Code.OVER_SOFT
_MOST_ROWS = 65_536
_REPEATED_WITHIN_NS = 120_000_000_000
"""Longest time for which a check is repeated: twice the largest deadline of the wire."""
_MOST_MOVED = 2000
"""Rows of one shard that move with it; the newest."""


class DecidedChecks:
    """Outcomes by the identity of the check."""

    def __init__(self, answers_to: Callable[[int, int], tuple[tuple[bytes, ...], int]]) -> None:
        """`answers_to` returns the answers to a request and when the last one was given, by the
        request's session and number."""
        self._answers_to = answers_to
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

    def find(self, ids: Sequence[CheckId]) -> dict[int, tuple[Row, int]]:
        """Return the outcomes that are known and when they were decided, by index into `ids`."""
        found: dict[int, tuple[Row, int]] = {}
        answers: dict[tuple[int, int], dict[int, tuple[Row, int]]] = {}
        for index, (session, seq, row) in enumerate(ids):
            if not seq:
                continue
            request = session, seq
            known = self._requests.get(request, {}).get(row)
            if known is not None:
                found[index] = known[0].row, known[1]
                continue
            if request not in answers:
                answers[request] = self._answered(request)
            if row in answers[request]:
                found[index] = answers[request][row]
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

    def of_shard(self, shard: int, since: int, now: int) -> list[DecidedCheck]:
        """List the checks of a shard's keys that were decided from `since` on, and whose repeats
        may still come."""
        found = [
            (check, at)
            for rows in self._requests.values()
            for check, at in rows.values()
            if at >= max(since, now - _REPEATED_WITHIN_NS) and shard_of(check.key) == shard
        ]
        return [replace(check, age_ns=max(0, now - at)) for check, at in found[-_MOST_MOVED:]]

    def merge(
        self, checks: Iterable[DecidedCheck], now: int
    ) -> tuple[list[DecidedCheck], list[DecidedCheck]]:
        """Take over what another node decided.

        Returns the checks that both nodes admitted, of which one charge must go: those that this
        node admitted first, and those that the other one did, with the age of the charge here.
        """
        ours_first: list[DecidedCheck] = []
        theirs_first: list[DecidedCheck] = []
        for check in checks:
            known = self.find([check.id]).get(0)
            if known is None:
                self.remember(check.id, check.key, check.cost, check.row, now - check.age_ns)
            elif max(known[0][CODE], check.row[CODE]) <= _LAST_CHARGED:
                age_ns = max(0, now - known[1])
                if age_ns >= check.age_ns:
                    ours_first.append(check)
                else:
                    theirs_first.append(replace(check, age_ns=age_ns))
        return ours_first, theirs_first

    def _answered(self, request: tuple[int, int]) -> dict[int, tuple[Row, int]]:
        """Read the decided rows out of the answers to a request, and when they were given."""
        payloads, at = self._answers_to(*request)
        found: dict[int, tuple[Row, int]] = {}
        for answer in map(decode, payloads):
            if isinstance(answer, Answer):
                verdicts = Verdicts(answer.outcomes, answer.sources)
                rows = range(len(answer.sources)) if answer.rows is None else answer.rows
                for place, row in enumerate(rows):
                    if answer.sources[place] in _DECIDED:  # A policy's answer is no decision.
                        found[row] = verdicts.row(place), at
        return found
