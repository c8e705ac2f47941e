"""Compiled tables of counters: same results as the implementation in Python, but faster and
smaller.

If there was no C compiler at installation, there are no compiled modules, and the Python
implementation is used.
"""

import sys

from msgspec import Struct

from ringfence.limiter.backends import Frames, KeyBounds, SlowGroup, Tables
from ringfence.limiter.limit import Limit
from ringfence.limiter.table import Table

__all__ = ["compiled_tables", "why_not_compiled"]

_NOT_LITTLE = "the compiled tables are written for little-endian processors"
_why_not: str | None = None if sys.byteorder == "little" else _NOT_LITTLE
if _why_not is None:
    try:
        from ringfence.limiter.compiled._frames import Frames as CompiledFrames
        from ringfence.limiter.compiled.table import CompiledTable
    except ImportError as error:
        _why_not = f"the compiled modules were not built when Ringfence was installed ({error})"


def why_not_compiled() -> str | None:
    """Return why compiled counter tables are not available; None when they are."""
    return _why_not


def compiled_tables(secret: bytes, *, keeps_keys: bool) -> Tables:
    """Return a factory of compiled counter tables for an engine.

    `secret`, 16 bytes, is the key of the identity hash. Anyone who knows it could create two keys
    that share a counter. An engine that transfers counters to other nodes needs `keeps_keys`.
    Raises `RuntimeError` when compiled tables are not available, see `why_not_compiled`.
    """
    if _why_not is not None:
        raise RuntimeError(_why_not)
    return _CompiledTables(secret, keeps_keys)


class _CompiledTables(Struct, frozen=True):
    _secret: bytes
    _keeps_keys: bool

    def table(
        self, limit: Limit, *, max_keys: int, first_slot_id: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        return CompiledTable(
            limit,
            max_keys=max_keys,
            secret=self._secret,
            keeps_keys=self._keeps_keys or lists_keys,
            first_slot_id=first_slot_id,
            is_shared=is_shared,
        )

    def frames(self, slow_group: SlowGroup, bounds: KeyBounds) -> Frames:
        return CompiledFrames(slow_group, bounds)
