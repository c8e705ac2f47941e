from collections.abc import Iterable, Mapping, MutableMapping, Sequence

from ringfence.limiter.compiled._store import Store
from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcome, Outcomes
from ringfence.limiter.packed._packed_dict import PackedMap
from ringfence.limiter.reference import Counter, Verdict

class HotTable:
    own: Store | None
    stores: list[Store]
    overflow: MutableMapping[bytes, Counter]
    cold: PackedMap
    own_limit: Limit
    own_amount: int
    most: int
    last_limit: Limit | None
    def __len__(self) -> int: ...
    def check(self, key: bytes, cost: int, now: int, limit: Limit | None = None) -> Outcome: ...
    def state(
        self, key: bytes, now: int
    ) -> tuple[list[int], Limit, dict[str, list[int]]] | None: ...
    def restore(
        self,
        key: bytes,
        state: Sequence[int],
        limit: Limit,
        remote: Mapping[str, Sequence[int]],
        now: int,
    ) -> None: ...
    def verdicts(
        self, keys: Sequence[bytes], costs: Sequence[int], now: int, limit: Limit | None = None
    ) -> list[Verdict]: ...
    def check_many(
        self, keys: Sequence[bytes], costs: Sequence[int], now: int, limit: Limit | None = None
    ) -> Outcomes: ...

def check_rows(
    packed: bytes, count: int, limits: int, shortest_key: int, longest_key: int
) -> None: ...
def pack_rows(rows: Iterable[tuple[bytes, int, list[int]]]) -> bytes: ...
def unpack_rows(packed: bytes) -> tuple[list[bytes], list[int], list[list[int]]]: ...
