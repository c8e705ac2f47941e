"""The history of a run as one chained hash: equal histories have equal ones, and no others."""

from collections import deque
from hashlib import blake2b

__all__ = ["Events"]

_KEPT = 400


class Events:
    """Takes note of all that happens, in order."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.count = 0
        self.last: deque[str] = deque(maxlen=_KEPT)
        """The latest ones, for whoever looks for the cause of a violation."""

    def add(self, at: float, who: str, what: str) -> None:
        """Add one event: an instant of virtual time, where, and what."""
        line = f"{at:.9f} {who} {what}\n"
        self._hash.update(line.encode())
        self.count += 1
        self.last.append(line.rstrip())

    @property
    def digest(self) -> str:
        """Hex."""
        return self._hash.hexdigest()
