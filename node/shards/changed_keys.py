"""Keys whose counters have changed since they were last sent to the standby."""

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from ringfence import runtime

__all__ = ["MAX_FRAMES", "ChangedKeys"]

MAX_FRAMES = 256
"""Frames whose keys may wait to be merged."""


class ChangedKeys:
    """Changed keys of one node, in the order of their first change.

    The keys of a received frame are merged later: merging many frames at once costs less.
    """

    def __init__(self) -> None:
        self._keys: dict[bytes, None] = {}
        self.frames: list[Sequence[bytes]] = []
        """Keys of decided frames; call `notify` after the first one, and `merge` when there are
        `MAX_FRAMES`."""
        self._notification = runtime.Event()

    def add(self, key: bytes) -> None:
        """Add one key whose counter has changed."""
        self.keys[key] = None
        self.notify()

    def update(self, keys: Iterable[bytes]) -> None:
        """Add keys whose counters have changed."""
        self.keys.update(dict.fromkeys(keys))
        self.notify()

    def notify(self) -> None:
        """Wake the task that waits in `wait`."""
        self._notification.set()

    async def wait(self) -> None:
        """Wait until there are changed keys, or until the next call of `notify`."""
        if not self.frames and not self._keys:
            self._notification = runtime.Event()
            await self._notification.wait()

    def clear(self) -> None:
        """Remove all changed keys, without sending their counters."""
        self.frames.clear()
        self._keys.clear()

    def take(self, most: int) -> list[bytes]:
        """Remove and return up to `most` keys, those first that have changed first."""
        keys = self.keys
        if len(keys) <= most:
            self._keys = {}
            return [*keys]
        taken = [*islice(keys, most)]
        for key in taken:
            del keys[key]
        return taken

    @property
    def keys(self) -> dict[bytes, None]:
        """Return all changed keys. The caller removes a key from this set when it has sent it."""
        if self.frames:
            self.merge()
        return self._keys

    def merge(self) -> None:
        """Move the keys of all collected frames into the set of changed keys."""
        keys = dict.fromkeys(chain.from_iterable(self.frames))
        if self._keys:
            self._keys.update(keys)
        else:
            self._keys = keys
        self.frames.clear()
