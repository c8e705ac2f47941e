"""Fair order of long requests: between two steps of one request, other callers are answered.

Decides which caller is served next: tokens take turns, and so do the senders of one token. Each
iteration of the event loop performs one step of one request, so other callers wait for one step at
most. `request_intake` defines the steps.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from node.requests.sessions.sent_answers import Sender

__all__ = ["DIRECT_COST", "MAX_BYTES", "MAX_WAITING", "STEP_COST", "RequestScheduler", "steps_of"]

DIRECT_COST = 256
"""Largest cost of a request that is decided at once; the unit is the work of about 1 us."""
STEP_COST = 1024
"""Cost of one step of a request."""
MAX_WAITING = 16_384
"""Rows of requests that wait for their turn; more are refused. One token may fill half of it."""
MAX_BYTES = 16 << 20
"""Bytes of undecoded requests that wait; more are refused. One token may fill half of it."""

SessionT = TypeVar("SessionT")
_Steps = Iterator[None]


class RequestScheduler(Generic[SessionT]):
    """Queue of waiting requests by token and sender."""

    def __init__(self, most: int = MAX_WAITING, most_bytes: int = MAX_BYTES) -> None:
        self.rows = 0
        """Rows of all requests that wait."""
        self.size = 0
        """Bytes of all undecoded requests that wait."""
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: OrderedDict[
            tuple[str, object], OrderedDict[Sender[SessionT], deque[tuple[_Steps, int, int]]]
        ] = OrderedDict()
        """By caller's name and role; the caller that is served next is first."""
        self._loads: dict[tuple[str, object], tuple[int, int]] = {}
        """Rows and bytes by caller."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has_room(self, sender: Sender[SessionT], rows: int, size: int = 0) -> bool:
        """Return whether a request with `rows` checks and `size` undecoded bytes may be queued."""
        own_rows, own_size = self._loads.get(_caller_of(sender), (0, 0))
        is_small = self.size + size <= self._most_bytes and own_size + size <= self._most_bytes // 2
        return is_small and self.rows + rows <= self._most and own_rows + rows <= self._most // 2

    def add(self, sender: Sender[SessionT], steps: _Steps, rows: int, size: int = 0) -> None:
        """Queue a request; each call of `next` on `steps` performs one of its steps."""
        caller = _caller_of(sender)
        self._waiting.setdefault(caller, OrderedDict()).setdefault(sender, deque()).append(
            (steps, rows, size)
        )
        self._load(caller, rows, size)
        sender.waiting += 1

    def _load(self, caller: tuple[str, object], rows: int, size: int) -> None:
        own_rows, own_size = self._loads.get(caller, (0, 0))
        self._loads[caller] = own_rows + rows, own_size + size
        self.rows += rows
        self.size += size

    def step(self) -> None:
        """Perform one step of the request whose turn it is."""
        if not self._waiting:
            return
        caller, senders = next(iter(self._waiting.items()))
        sender, requests = next(iter(senders.items()))
        self._waiting.move_to_end(caller)
        senders.move_to_end(sender)
        steps, rows, size = requests[0]
        try:
            next(steps)
        except StopIteration:
            requests.popleft()
            self._leave(caller, sender, rows, size)

    def _leave(
        self, caller: tuple[str, object], sender: Sender[SessionT], rows: int, size: int
    ) -> None:
        sender.waiting -= 1
        self._load(caller, -rows, -size)
        senders = self._waiting[caller]
        if not senders[sender]:
            del senders[sender]
        if not senders:
            del self._waiting[caller], self._loads[caller]


def _caller_of(sender: Sender[SessionT]) -> tuple[str, object]:
    name, _, role = sender.identity
    return name, role


def steps_of(groups: Sequence[int], rows: int, cost: int) -> Iterator[range]:
    """Divide the checks of a request into steps of limited cost; a group of checks is not divided.

    `cost` is the cost of all `rows` checks. `groups` has the number of checks in each group; empty
    when there are no groups.
    """
    most = max(1, rows * STEP_COST // max(1, cost))
    start = end = 0
    for run in groups or [1] * rows:
        if end > start and end + run - start > most:
            yield range(start, end)
            start = end
        end += run
    yield range(start, end)
