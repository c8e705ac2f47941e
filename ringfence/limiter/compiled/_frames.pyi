from collections.abc import Callable, Sequence

from ringfence.limiter.backends import KeyBounds
from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.reference import Verdict
from ringfence.limiter.table import Table

class Frames:
    def __init__(
        self,
        slow_group: Callable[[Sequence[bytes], Sequence[int], int], list[Verdict]],
        bounds: KeyBounds,
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
        self, key: bytes, cost: int, now: int, source: int
    ) -> tuple[int, int, int, int, int, int, int, int]: ...
    def restore(
        self,
        keys: Sequence[bytes],
        states: Sequence[Sequence[int]],
        limits: Sequence[Limit],
        which: Sequence[int],
        now: int,
        slow: Callable[[int], None],
    ) -> None: ...
    def forget(self, keys: Sequence[bytes]) -> list[bytes]: ...
    def pack(
        self, keys: Sequence[bytes], now: int, with_unused: bool
    ) -> tuple[bytes, int, list[Limit]] | None: ...
