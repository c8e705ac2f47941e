"""Pending request: one batch, the requests to members that it needs, and the results so far."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from ringfence.errors import AccessDenied
from ringfence.peering.target import SentBatch, Shed, Target
from ringfence.runtime import Event
from ringfence.wire import (
    NO_ID,
    Batch,
    CheckId,
    OutcomeRow,
    Results,
    Source,
    empty_results,
    join_results,
)

__all__ = ["BY_MEMBER", "MemberRequest", "Part", "PendingRequest"]

BY_MEMBER = (Source.OWNER, Source.STANDBY)
"""Sources of results that a member of the cluster has decided."""

Part: TypeAlias = tuple[Sequence[int], Target, bool]
"""Rows of a batch, the member to ask about them, and whether it is asked as the standby."""


class MemberRequest:
    """Request to one member about some checks of a batch, and the member's answer."""

    __slots__ = (
        "_on_done",
        "_places",
        "as_standby",
        "batch",
        "first_row",
        "is_collected",
        "is_done",
        "is_shed",
        "on_late",
        "parts",
        "refusal",
        "results",
        "rows",
        "sent",
        "target",
    )

    def __init__(
        self,
        batch: Batch,
        rows: Sequence[int],
        target: Target | None,
        on_done: Callable[[], None],
        *,
        as_standby: bool,
    ) -> None:
        self.batch = batch
        self.target = target
        self.as_standby = as_standby
        """Whether the member was asked as the standby. It may have asked the owner."""
        self.rows = rows
        """Indexes of the rows of `batch` in the whole batch."""
        self.results: Results | None = None
        """Results of all rows; None until the last one has arrived."""
        self.parts: dict[int, OutcomeRow] = {}
        """Results that arrived before those of other rows, by their places in `rows`."""
        self.refusal: AccessDenied | None = None
        self.is_done = False
        self.is_collected = False
        """Whether the results were added to those of the whole batch."""
        self.is_shed = False
        """Whether the member is overloaded."""
        self.on_late: Callable[[Results], None] | None = None
        """Callback for results that arrive after the caller got its decision."""
        self.sent: SentBatch | None = None
        self.first_row = 0
        """Place of the first row in `sent`, which may contain checks of other callers."""
        self._on_done = on_done
        self._places: dict[int, int] = {}
        """Places of the rows in `rows`, once `source_of` was called."""

    @property
    def answered(self) -> Sequence[int]:
        """Rows of the whole batch whose results have arrived."""
        return [self.rows[at] for at in self.parts] if self.results is None else self.rows

    def source_of(self, row: int) -> int | None:
        """Return the source of the result of a row of the whole batch; None without a result."""
        if not self._places:
            self._places = {each: place for place, each in enumerate(self.rows)}
        place = self._places.get(row)
        if place is None:
            return None
        if self.results is not None:
            return self.results.sources[place]
        return self.parts[place][-1] if place in self.parts else None

    def resolve_rows(self, places: list[int], results: Results) -> None:
        """Set the results of some rows, which the member answered before the others."""
        self.parts.update(zip(places, results.rows(), strict=True))
        if len(self.parts) == len(self.rows):
            whole = empty_results(len(self.rows))
            for place, row in self.parts.items():
                whole.put_row(place, row)
            self.resolve(whole)
        else:
            self._on_done()

    def resolve(self, answer: Results | AccessDenied | Shed | None) -> None:
        """Set the member's answer; None means that no answer arrived in time, but it may still
        arrive later."""
        self.is_done = True
        if isinstance(answer, AccessDenied):
            self.refusal = answer
        elif isinstance(answer, Shed):
            self.is_shed = True
        elif answer is not None:
            self.results = answer
        on_done = self._on_done
        if answer is not None:
            self._on_done = _no_call  # It refers to this request, by the pending request.
        on_done()
        if self.on_late is not None and self.results is not None:
            self.on_late(self.results)


def _no_call() -> None:
    """Do nothing: the caller has the answer of the member."""


class PendingRequest:
    """One batch of checks, and its results while the members' answers arrive."""

    def __init__(self, batch: Batch, asked_at: float) -> None:
        self.batch = batch
        self.asked_at = asked_at
        self.requests: list[MemberRequest] = []
        """Requests to members, in the order in which they were sent."""
        self.missing: Sequence[int] = range(len(batch))
        """Rows without results."""
        self.refunded: set[int] = set()
        """Rows whose charge was refunded."""
        self.shed: set[int] = set()
        """Rows whose member is overloaded: no other member is asked."""
        self._event: Event | None = None
        """Set by each answer while the caller waits."""
        self._results: Results | None = None

    @property
    def results(self) -> Results:
        """Results of the batch so far; their columns are created at the first use, which is
        rare."""
        if self._results is None:
            self._results = empty_results(len(self.batch))
        return self._results

    @results.setter
    def results(self, results: Results) -> None:
        self._results = results

    def without_shed(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the given rows without those that an overloaded member has rejected (shed)."""
        return [row for row in rows if row not in self.shed] if self.shed else rows

    def add_request(
        self,
        batch: Batch,
        rows: Sequence[int],
        target: Target | None,
        *,
        as_standby: bool = False,
    ) -> MemberRequest:
        """Add a request to one member for some rows of the batch."""
        request = MemberRequest(batch, rows, target, self._wake, as_standby=as_standby)
        self.requests.append(request)
        return request

    def send(self, parts: Sequence[Part], hops: int) -> list[MemberRequest]:
        """Send parts of the batch to members; checks that were sent before keep their
        identities."""
        earlier = [*self.requests]
        for rows, target, as_standby in parts:
            is_all = len(rows) == len(self.batch)
            batch = self.batch if is_all else self.batch.take(rows)
            if earlier and not batch.ids:
                batch = replace(batch, ids=_identities(earlier, rows))
            request = self.add_request(batch, rows, target, as_standby=as_standby)
            request.sent = target.ask(batch, hops=hops, as_standby=as_standby, done=request.resolve)
            if request.sent is not None:
                request.sent.on_rows = request.resolve_rows
        return self.requests[len(earlier) :]

    def answered_by(self, row: int) -> MemberRequest | None:
        """Return the request whose answer has the result of a row; None without one."""
        source = self.results.sources[row]
        for request in self.requests:
            if request.source_of(row) == source:
                return request
        return None

    def mark_refunded(self, rows: Iterable[int]) -> None:
        """Record that the charges of some checks of the batch were refunded."""
        sources = self.results.sources
        self.refunded.update([row for row in rows if sources[row] in BY_MEMBER])

    def identified(self, request: MemberRequest | None = None) -> Batch:
        """Return the batch, or that of one request, with the identities of the sent checks."""
        batch = self.batch if request is None else request.batch
        rows = range(len(batch)) if request is None else request.rows
        if batch.ids or not self.requests:
            return batch
        return replace(batch, ids=_identities(self.requests, rows))

    async def wait(self, requests: Sequence[MemberRequest]) -> None:
        """Wait until the given requests to members are done, or until all checks of the batch
        are answered."""
        while not self._is_over(requests):
            self._event = Event()
            await self._event.wait()

    def _is_over(self, requests: Sequence[MemberRequest]) -> bool:
        if all([request.is_done for request in requests]):
            return True
        if len(requests) == len(self.requests):
            return False
        answered = {row for request in self.requests for row in request.answered}
        return answered.issuperset(self.missing)

    def _wake(self) -> None:
        if self._event is not None:
            self._event.set()

    def collect(self) -> None:
        """Add the results that have arrived from members; of several results for a check, the
        first is kept."""
        if len(self.requests) == 1 and len(self.requests[0].rows) == len(self.batch.keys):
            only = self.requests[0]
            if only.results is not None and not only.is_collected:
                # By far the most frequent case: one member decided all.
                only.is_collected = True
                self.results, self.missing = only.results, ()
                return
        elif self._collect_all():
            return
        for request in self.requests:
            if request.refusal is not None:
                so_far = self.results
                so_far.refusal = request.refusal
            if request.is_shed:
                self.shed.update(request.rows)
            if not request.is_collected:
                self._add_new(request)

    def _add_new(self, request: MemberRequest) -> None:
        """Add the results of one request to the rows that have none yet."""
        results, missing = request.results, set(self.missing)
        request.is_collected = results is not None
        if results is not None and missing.issuperset(request.rows):
            self.results.scatter(request.rows, results)
        else:
            found = request.parts.items() if results is None else enumerate(results.rows())
            for place, result in found:
                if request.rows[place] in missing:
                    self.results.put_row(request.rows[place], result)
        missing.difference_update(request.answered)
        self.missing = [row for row in self.missing if row in missing]

    def _collect_all(self) -> bool:
        """Join the results of several members, if all have arrived and none was added before."""
        answered = [
            (request.rows, request.results)
            for request in self.requests
            if request.results is not None and not request.is_collected
        ]
        if len(answered) != len(self.requests):
            return False
        joined = join_results(answered, len(self.batch))
        if joined is None:
            return False
        for request in self.requests:
            request.is_collected = True
        self.results, self.missing = joined, ()
        return True

    def shed_rows_of_busy_members(self) -> None:
        """Mark the unanswered checks of members that are alive as shed: rejected because of
        overload."""
        for request in self.requests:
            target = request.target
            if target is not None and not request.is_done and target.is_alive():
                self.shed.update(request.rows)


def _identities(requests: Sequence[MemberRequest], rows: Sequence[int]) -> list[CheckId]:
    """Return the identities with which the checks in `rows` were sent before; empty when none
    was sent."""
    wanted = set(rows)
    found: dict[int, CheckId] = {}
    for request in requests:
        if request.sent is None or wanted.isdisjoint(request.rows):
            continue
        first = request.sent.identify()
        if first is not None:
            session, seq, start = first[0], first[1], first[2] + request.first_row
            for place, row in enumerate(request.rows):
                found.setdefault(row, (session, seq, start + place))
    return [found.get(row, NO_ID) for row in rows] if found else []
