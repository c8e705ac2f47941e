"""Cache of resolved host names, for datagrams that are sent without a connection."""

from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from ringfence.transport.interface import Address

__all__ = ["NameCache"]

_TTL = 30.0
"""Seconds until a name is resolved again."""
_FAILURE_TTL = 1.0
"""Seconds until a name that could not be resolved is tried again."""
_MAX_NAMES = 4096


class _Entry(Struct):
    expires_at: float
    resolved: Address | None
    """Last numeric address; None until the name has been resolved once."""


class NameCache:
    """Numeric addresses by host name and port; the oldest entry is dropped first."""

    def __init__(self, resolve: Callable[[Address], None]) -> None:
        """`resolve` starts to resolve a name; its result is passed to `store` later."""
        self._resolve = resolve
        self._entries: OrderedDict[Address, _Entry] = OrderedDict()

    def lookup(self, address: Address, now: float) -> Address | None:
        """Return the last known address of a host name; start to resolve the name again after
        expiry."""
        entry = self._entries.get(address)
        if entry is None:
            entry = self._entries[address] = _Entry(now, None)
            while len(self._entries) > _MAX_NAMES:
                self._entries.popitem(last=False)
        if now >= entry.expires_at:
            entry.expires_at = now + _TTL
            self._resolve(address)
        return entry.resolved

    def store(self, address: Address, resolved: Address | None, now: float) -> None:
        """Store the numeric address of a resolved name; None for a failure."""
        entry = self._entries.get(address)
        if entry is None:
            return
        if resolved is None:
            entry.expires_at = now + _FAILURE_TTL
        else:
            entry.resolved = resolved
