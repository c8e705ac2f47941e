"""Counter tables and keys that several benchmarks share."""

from ringfence.limiter import NS_PER_SECOND, Limit, Table, compiled_tables, why_not_compiled
from ringfence.peering.engine_choice import SECRET_BYTES

__all__ = ["MINUTE", "START", "key_of", "new_table"]

START = 1_700_000_000 * NS_PER_SECOND
MINUTE = 60 * NS_PER_SECOND


def key_of(number: int, *, rule: int = 1) -> bytes:
    """Return a counter key of 27 bytes, as rules create it from a client's name."""
    return rule.to_bytes(8, "big") + b"client-%012d" % number


def new_table(limit: Limit, max_keys: int, *, keeps_keys: bool = False) -> Table:
    """Create a compiled counter table, or one in Python if the compiled module is missing."""
    if why_not_compiled() is not None:
        return Table(limit, max_keys=max_keys)
    return compiled_tables(bytes(SECRET_BYTES), keeps_keys=keeps_keys).table(
        limit, max_keys=max_keys, first_slot_id=1, is_shared=False, lists_keys=False
    )
