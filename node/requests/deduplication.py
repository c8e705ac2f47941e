"""Deduplication: outcomes of checks, charges, refunds and resets, so that each counts once.

A check can reach a node directly from a client, as a hedged request, and forwarded by another node,
in any order. The node decides the first one and repeats the outcome for the others. `sent_answers`
stores the outcomes of checks that clients sent directly, `DirectChecks` their keys. Only repeated
checks, refunds and resets, which are few, have rows in `DecidedChecks`. The number of rows is
bounded: the oldest request is dropped first.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from hashring import shard_of, shards_of
from ringfence.limiter import CHARGED_CODES
from ringfence.wire import (
    CODE,
    Answer,
    CheckId,
    DecidedCheck,
    Op,
    OutcomeRow,
    Source,
    decode,
)

__all__ = ["COUNTED_ONCE", "DecidedChecks", "DirectChecks", "repeats_within"]

_DECIDED = (Source.OWNER, Source.STANDBY)
COUNTED_ONCE = (Op.CHECK, Op.CHARGE, Op.REFUND, Op.RESET)
"""Operations whose rows have an identity, so that a repeat finds the first outcome."""
_MAX_ROWS = 65_536
_REPEATED_WITHIN_NS = 120_000_000_000
"""Longest time for which a check is repeated: twice the largest deadline of the wire."""
_MAX_MOVED = 2000
"""Most rows of one shard that are transferred with it: the newest."""
_MAX_DIRECT_ROWS = 32_768
_MAX_INDEXED_ROWS = 2 * _MAX_DIRECT_ROWS
"""Rows in the index by shard, with those that were dropped since, above which it is built again."""
_MAX_FORWARDED = 32_768
"""Most requests whose forwarded rows are stored: the newest."""
_Rows: TypeAlias = Sequence[int] | None
_Request: TypeAlias = tuple[int, int, int, Sequence[bytes], Sequence[int], _Rows]
"""Until when it may be repeated, session, number, keys, costs, and rows or None for all. A plain
tuple: one is made for each request."""


def repeats_within(ids: Sequence[CheckId]) -> dict[int, int]:
    """Return the checks that repeat an earlier check of the same batch: the index of that check, by
    index.

    A link that was interrupted sends waiting requests in one batch, also two for the same check.
    """
    if len(set(ids)) == len(ids):
        return {}
    first: dict[CheckId, int] = {}
    return {
        index: first[id_]
        for index, id_ in enumerate(ids)
        if id_[1] and first.setdefault(id_, index) != index
    }


class DecidedChecks:
    """Outcomes of decided checks, by the identity of the check."""

    def __init__(
        self, answers_to: Callable[[int, int], tuple[tuple[bytes, ...], int]] = lambda *_: ((), 0)
    ) -> None:
        """`answers_to` takes the session and the number of a request. It returns the answers to the
        request, and when the last one was given."""
        self._answers_to = answers_to
        self._requests: OrderedDict[tuple[int, int], dict[int, tuple[DecidedCheck, int]]] = (
            OrderedDict()
        )
        """By session and number of the request: by row, the check and when it was decided."""
        self._by_shard: dict[int, dict[CheckId, tuple[DecidedCheck, int]]] = {}
        """The same checks, by shard and identity."""
        self._direct = DirectChecks()
        self._forwarded: OrderedDict[tuple[int, int], set[int] | None] = OrderedDict()
        """Rows of direct requests that other members decided; None means all rows."""
        self._charged_elsewhere: dict[int, tuple[int, set[CheckId]]] = {}
        """By shard, the instant up to which another member has the charges of this node's checks,
        and the checks whose charges have returned since."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def knows_request(self, session: int, seq: int) -> bool:
        """Return whether a check of this request was decided already, as a hedged or forwarded
        request."""
        return (session, seq) in self._requests

    def find(self, ids: Sequence[CheckId]) -> dict[int, tuple[OutcomeRow, int]]:
        """Return the stored outcomes of checks with their decision times, by index into `ids`."""
        found: dict[int, tuple[OutcomeRow, int]] = {}
        answers: dict[tuple[int, int], dict[int, tuple[OutcomeRow, int]]] = {}
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

    def record_request(
        self,
        session: int,
        seq: int,
        keys: Sequence[bytes],
        costs: Sequence[int],
        rows: Sequence[int] | None,
        now: int,
        deadline_ns: int,
    ) -> None:
        """Record the checks of a request that a client sent directly to this node, answered at
        `now`.

        A check may be repeated until its deadline, and the repeated check has an equally long
        deadline.
        """
        self._direct.add(session, seq, keys, costs, rows, now, now + 2 * deadline_ns)

    def record_forwarded(self, session: int, seq: int, rows: Sequence[int] | None) -> None:
        """Record rows of a client's request that other members decided; None means all rows.

        This node stores their outcomes in its answers, but its counters have no charge of them.
        """
        before = self._forwarded.pop((session, seq), set())
        self._forwarded[session, seq] = (
            None if rows is None or before is None else before.union(rows)
        )
        if len(self._forwarded) > _MAX_FORWARDED:
            self._forwarded.popitem(last=False)

    def remember(
        self,
        id: CheckId,  # noqa: A002
        key: bytes,
        cost: int,
        row: OutcomeRow,
        now: int,
        *,
        is_refund: bool = False,
        is_reset: bool = False,
        replica_age_ns: int = 0,
    ) -> None:
        """Store the outcome of a check that was decided at `now`.

        The cost of a refund is the units that it removed, see `AppliedRefunds`. For
        `replica_age_ns` see `DecidedCheck`.
        """
        session, seq, place = id
        if not seq:
            return
        rows = self._requests.setdefault((session, seq), {})
        if place in rows:
            self._forget(rows.pop(place)[0])
        rows[place] = self._by_shard.setdefault(shard_of(key), {})[id] = (
            DecidedCheck(id, key, cost, 0, row, is_refund, is_reset, replica_age_ns),
            now,
        )
        self._size += 1
        while self._size > _MAX_ROWS:
            for check, _ in self._requests.popitem(last=False)[1].values():
                self._forget(check)

    def replace_outcome(self, id_: CheckId, row: OutcomeRow) -> None:
        """Replace the stored outcome of a check, if there is one."""
        session, seq, place = id_
        rows = self._requests.get((session, seq), {})
        if place in rows:
            check, at = rows[place]
            known = replace(check, row=row), at
            rows[place] = self._by_shard[shard_of(check.key)][id_] = known

    def _forget(self, check: DecidedCheck) -> None:
        shard = shard_of(check.key)
        self._size -= 1
        del self._by_shard[shard][check.id]
        if not self._by_shard[shard]:
            del self._by_shard[shard]

    def of_shard(self, shard: int, since: int, now: int) -> list[DecidedCheck]:
        """Return the newest checks of a shard that may still be repeated and were decided since
        `since`.

        The newest check is last. Checks whose charges another member has are omitted, because that
        member sends them with the charges. Refunds that removed nothing here are omitted, because
        the member with the charge must still apply them.
        """
        repeated = self._by_shard.get(shard, {})
        known = [*repeated.values(), *self._direct_of(shard, repeated, now)]
        if not known:  # The usual case for thousands of shards.
            return []
        since = max(since, now - _REPEATED_WITHIN_NS)
        recent = [
            (check, at)
            for check, at in known
            if at >= since
            and (check.cost or not check.is_refund)
            and (check.row[CODE] not in CHARGED_CODES or self._is_charged_here(shard, check.id, at))
        ]
        found = sorted(recent, key=lambda each: each[1])
        return [replace(check, age_ns=max(0, now - at)) for check, at in found[-_MAX_MOVED:]]

    def _direct_of(
        self, shard: int, known: Container[CheckId], now: int
    ) -> Iterator[tuple[DecidedCheck, int]]:
        """Yield the directly sent checks of a shard with their decision times, except those in
        `known`."""
        answers: dict[tuple[int, int], dict[int, tuple[OutcomeRow, int]]] = {}
        for request, row, key, cost in self._direct.of_shard(shard, now):
            id_ = (*request, row)
            if id_ in known:
                continue
            if request not in answers:
                answers[request] = self._answered(request)
            if row in answers[request]:
                outcome, at = answers[request][row]
                yield DecidedCheck(id_, key, cost, 0, outcome), at

    def index(self, most_rows: int) -> bool:
        """Index up to about `most_rows` more rows of direct requests by shard, before many shards
        are sent; return whether all are in the index."""
        return self._direct.index(most_rows)

    def drop_index(self) -> None:
        """Remove the index by shard, which costs memory."""
        self._direct.drop_index()

    def on_charges_transferred(
        self, shard: int, at: int, charged_here: Iterable[CheckId] = ()
    ) -> None:
        """Record that the charges of a shard's checks up to the instant `at` moved to another
        member.

        The outcomes of these checks are kept. A transfer that contains such a check brings its
        charge back. This node has another charge of the checks in `charged_here`.
        """
        elsewhere = self._charged_elsewhere
        elsewhere.pop(shard, None)
        elsewhere[shard] = at, {*charged_here}
        while at - elsewhere[first := next(iter(elsewhere))][0] > _REPEATED_WITHIN_NS:
            del elsewhere[first]

    def on_charges_returned(self, shard: int) -> None:
        """Record that this node's counters of a shard contain all charges of its checks again."""
        self._charged_elsewhere.pop(shard, None)

    def _is_charged_here(self, shard: int, id_: CheckId, at: int) -> bool:
        """Return whether this node's counters include the charge of a check that was decided at
        `at`."""
        until, returned = self._charged_elsewhere.get(shard, (-1, set()))
        return at > until or id_ in returned

    def _on_charge(self, check: DecidedCheck, at: int) -> bool:
        """Record that the charge of a check that was decided at `at` arrives; return whether this
        node's counters included it before."""
        shard = shard_of(check.key)
        if self._is_charged_here(shard, check.id, at):
            return True
        self._charged_elsewhere[shard][1].add(check.id)
        return False

    def merge(
        self, checks: Iterable[DecidedCheck], now: int
    ) -> tuple[list[DecidedCheck], list[DecidedCheck], list[DecidedCheck]]:
        """Add outcomes that another node decided; return the checks that both nodes admitted.

        One of the two charges of each must be removed. The first list has the checks that this node
        admitted first. The second list has the others, with the age and the outcome of the charge
        on this node. The third list has the refunds for which both nodes removed units. It has the
        age of the refund on this node, and the units that must be charged again. It also has the
        resets that both nodes have applied. Checks and refunds before such a reset are left out.
        """
        ours_first: list[tuple[int, DecidedCheck]] = []
        theirs_first: list[tuple[int, DecidedCheck]] = []
        refunds: list[tuple[int, DecidedCheck]] = []
        last_reset: dict[bytes, int] = {}
        for place, check in enumerate(checks):
            known = self.find([check.id]).get(0)
            if known is None or self._was_forwarded(check.id):
                self._on_charge(check, now - check.age_ns)
                self._remember_arrived(check, now)
                continue
            age_ns = max(0, now - known[1])
            if check.is_refund:
                units = min(check.cost, self._removed_by(check.id))
                if units and not self._on_charge(check, known[1]):
                    self._remember_arrived(check, now)
                elif units:
                    refunds.append((place, replace(check, cost=units, age_ns=age_ns)))
            elif check.is_reset:
                if not self._on_charge(check, known[1]):
                    self._remember_arrived(check, now)
                else:
                    last_reset[check.key] = place
                    refunds.append((place, check))
            elif known[0][CODE] in CHARGED_CODES and check.row[CODE] in CHARGED_CODES:
                if not self._on_charge(check, known[1]):
                    self._remember_arrived(check, now)
                elif age_ns >= check.age_ns:
                    ours_first.append((place, check))
                else:
                    theirs_first.append((place, replace(check, age_ns=age_ns, row=known[0])))

        def after_reset(found: Iterable[tuple[int, DecidedCheck]]) -> list[DecidedCheck]:
            return [check for place, check in found if place >= last_reset.get(check.key, 0)]

        return after_reset(ours_first), after_reset(theirs_first), after_reset(refunds)

    def _remember_arrived(self, check: DecidedCheck, now: int) -> None:
        """Store the outcome of a check whose charge arrives, while this node has no other charge of
        the check."""
        self.remember(
            *(check.id, check.key, check.cost, check.row, now - check.age_ns),
            is_refund=check.is_refund,
            is_reset=check.is_reset,
            replica_age_ns=check.replica_age_ns,
        )

    def _was_forwarded(self, id_: CheckId) -> bool:
        """Return whether another member decided a check for this node, which has not received the
        charge since."""
        session, seq, row = id_
        if row in self._requests.get((session, seq), {}):
            return False
        rows = self._forwarded.get((session, seq), set())
        return rows is None or row in rows

    def _removed_by(self, refund: CheckId) -> int:
        """Return the units that a refund removed at this node; 0 for an unknown refund."""
        session, seq, row = refund
        known = self._requests.get((session, seq), {}).get(row)
        return known[0].cost if known is not None and known[0].is_refund else 0

    def _answered(self, request: tuple[int, int]) -> dict[int, tuple[OutcomeRow, int]]:
        """Return the outcomes of checks in the stored answers to a request, with the times of the
        answers."""
        payloads, at = self._answers_to(*request)
        found: dict[int, tuple[OutcomeRow, int]] = {}
        for answer in map(decode, payloads):
            if isinstance(answer, Answer):
                results = answer.results
                rows = range(len(results.sources)) if answer.rows is None else answer.rows
                for place, row in enumerate(rows):
                    if results.sources[place] in _DECIDED:  # Not decided by the failure policy.
                        found[row] = results.row(place), at
        return found


class DirectChecks:
    """Keys and costs of checks that clients sent directly, stored while they may be repeated.

    A repeated check has the identity of the direct check. If the shard was transferred meanwhile,
    its new owner must know the outcome, so the checks move with their shard. The outcomes are in
    the answers that `sent_answers` stores, which have no keys. The number of rows is bounded: the
    oldest request is forgotten first.
    """

    def __init__(self) -> None:
        self._requests: deque[_Request] = deque()
        self._size = 0
        self._dropped = 0
        """Number of requests that were dropped; it numbers the stored ones."""
        self._by_shard: defaultdict[int, list[tuple[int, _Request, int]]] = defaultdict(list)
        """Number of the request, request, and index of the row in it, while shards are sent. Rows
        of dropped requests remain."""
        self._indexed = 0
        """Number of the first request that is not in the index."""
        self._indexed_rows = 0

    def __len__(self) -> int:
        return self._size

    def add(
        self,
        session: int,
        seq: int,
        keys: Sequence[bytes],
        costs: Sequence[int],
        rows: _Rows,
        now: int,
        until: int,
    ) -> None:
        """Store a request that was decided at `now` and may be repeated until `until`."""
        requests = self._requests
        requests.append((until, session, seq, keys, costs, rows))
        self._size += len(keys)
        while requests and (self._size > _MAX_DIRECT_ROWS or requests[0][0] < now):
            self._size -= len(requests.popleft()[3])
            self._dropped += 1

    def of_shard(self, shard: int, now: int) -> list[tuple[tuple[int, int], int, bytes, int]]:
        """Return the directly sent checks of a shard that may be repeated: request, index in it,
        key and cost."""
        self.index(_MAX_DIRECT_ROWS)
        return [
            ((session, seq), at if rows is None else rows[at], keys[at], costs[at])
            for number, (until, session, seq, keys, costs, rows), at in self._by_shard.get(
                shard, ()
            )
            if until >= now and number >= self._dropped
        ]

    def index(self, most_rows: int) -> bool:
        """Add up to about `most_rows` more rows to the index by shard; return whether all are in
        it."""
        if self._indexed_rows > _MAX_INDEXED_ROWS:
            self.drop_index()
        requests, by_shard, before = self._requests, self._by_shard, self._indexed_rows
        place = max(0, self._indexed - self._dropped)
        while place < len(requests) and self._indexed_rows - before < most_rows:
            request = requests[place]
            for at, shard in enumerate(shards_of(request[3])):
                by_shard[shard].append((self._dropped + place, request, at))
            self._indexed_rows += len(request[3])
            place += 1
        self._indexed = self._dropped + place
        return place == len(requests)

    def drop_index(self) -> None:
        """Remove the index by shard."""
        self._by_shard.clear()
        self._indexed = self._indexed_rows = 0
