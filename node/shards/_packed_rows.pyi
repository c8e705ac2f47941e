from collections.abc import Sequence

from node.shards.replica_rows import Kept
from ringfence.limiter.packed._packed_dict import PackedDict

ROW_BYTES: int

def pack_row(limit: int, arrived_at: int, state: list[int]) -> bytes: ...
def head_of(row: bytes) -> tuple[int, int]: ...
def state_of(row: bytes) -> list[int]: ...
def keep_rows(
    shards: list[PackedRows | None],
    packed: bytes,
    numbers: list[int],
    arrived_at: int,
    sender: str,
    origins: Sequence[tuple[int, ...]],
    first_update: int,
) -> Kept: ...

class PackedRows(PackedDict):
    sender: str
    origins: tuple[int, ...]
    updated: int
