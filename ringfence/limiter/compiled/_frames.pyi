from collections.abc import Callable, Sequence

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.reference import Verdict
from ringfence.limiter.table import Table

def check_rows(
    packed: bytes, count: int, limits: int, shortest_key: int, longest_key: int
) -> None: ...

class Frames:
    def __init__(
        self, slow_group: Callable[[Sequence[bytes], Sequence[int], int], list[Verdict]]
    ) -> None: ...
    def set_tables(self, tables: Sequence[tuple[bytes, Table, bool]]) -> None: ...
    def decide(
        self,
        keys: Sequence[bytes],
        costs: Sequence[int],
        groups: Sequence[int],
        now: int,
        instants: list[int] | None = None,
    ) -> Outcomes | None: ...
    def decide_lone(
        self, key: bytes, cost: int, now: int
    ) -> tuple[int, int, int, int, int, int, int]: ...
    def pack(self, keys: Sequence[bytes], now: int) -> tuple[bytes, list[Limit]] | None: ...
