"""Limits that a client sends with a check: their bounds, and when a rule of the node replaces them.

When a rule of the nodes counts a key, a limit that a client sends for that key is ignored.
Otherwise a client could reset the key, or lock it for everyone.
"""

from collections.abc import Callable

from ringfence.limiter import MAX_CARRIED_SLOTS
from ringfence.wire import Batch, ErrorCode, Refused

__all__ = ["oversized", "overrule"]

_ID_BYTES = 8


def oversized(seq: int, batch: Batch) -> Refused | None:
    """Refuse a request whose limit would take too much memory for each key."""
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
    """Remove limits that a request carries for keys which a rule of the node counts; return their
    number."""
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
