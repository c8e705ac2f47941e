"""The limiter in compiled code: the same answers as the reference, many times faster and smaller.

Where the package was installed without a C compiler this folder has no compiled modules, and the
reference engine runs.
"""

import sys
from dataclasses import dataclass

from ringfence.limiter.backends import Frames, SlowGroup, Tables
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
    """Why there are no compiled tables here; None when there are."""
    return _why_not


def compiled_tables(secret: bytes, *, keeps_keys: bool) -> Tables:
    """Have an engine count in compiled tables.

    `secret`, 16 bytes, keys the identities: whoever knew it could make two keys share a budget.
    An engine that must list its keys, to hand their counters to other nodes, needs `keeps_keys`.
    Raises `RuntimeError` when there are none; ask `why_not_compiled` first.
    """
    if _why_not is not None:
        raise RuntimeError(_why_not)
    return _CompiledTables(secret, keeps_keys)


@dataclass(frozen=True, slots=True)
class _CompiledTables:
    _secret: bytes
    _keeps_keys: bool

    def table(
        self, limit: Limit, *, max_keys: int, first_lease: int, is_shared: bool, lists_keys: bool
    ) -> Table:
        return CompiledTable(
            limit,
            max_keys=max_keys,
            secret=self._secret,
            keeps_keys=self._keeps_keys or lists_keys,
            first_lease=first_lease,
            is_shared=is_shared,
        )

    def frames(self, slow_group: SlowGroup) -> Frames:
        return CompiledFrames(slow_group)
