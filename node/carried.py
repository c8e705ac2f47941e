"""Limits that come with checks: how large they may be, and when the node's own rule decides.

A client may not choose how a key is counted that a rule of the nodes counts already: under a limit
of its own choice it could reset that key or lock it for everyone.
"""

from collections.abc import Callable

from ringfence.client.batch import Batch
from ringfence.limiter import MAX_CARRIED_SLOTS
from ringfence.wire import ErrorCode, Refused

__all__ = ["oversized", "overrule"]

_ID_BYTES = 8


def oversized(seq: int, batch: Batch) -> Refused | None:
    """Refuse a request one of whose limits would take too much memory a key."""
    slots = max([limit.slots for limit in batch.limits], default=1)
    if slots <= MAX_CARRIED_SLOTS:
        return None
    return Refused(
        seq,
        ErrorCode.NOT_PERMITTED,
        f"slots must be at most {MAX_CARRIED_SLOTS} in a limit that comes with a check, got "
        f"{slots}; put this limit into the rules of the nodes",
    )


def overrule(batch: Batch, is_known: Callable[[int], bool]) -> int:
    """Have known rules decide their keys; return how many checks came with another limit."""
    known: dict[bytes, bool] = {}
    overruled = 0
    for row, key in enumerate(batch.keys):
        if not batch.which[row]:
            continue
        name = key[:_ID_BYTES]
        if name not in known:
            known[name] = is_known(int.from_bytes(name, "big"))
        if known[name]:
            batch.which[row] = 0
            overruled += 1
    if overruled and not any(batch.which):
        batch.limits, batch.which = [], []
    return overruled
