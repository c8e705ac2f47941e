"""Event history of a run, condensed to one chained hash, which is equal only for equal
histories.
"""

from collections import deque
from hashlib import blake2b

__all__ = ["Events"]

_KEPT = 400


class Events:
    """Recorder of all events of a run, in order."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.count = 0
        self.last: deque[str] = deque(maxlen=_KEPT)
        """The latest events, for the search for the cause of a violation."""

    def add(self, at: float, who: str, what: str) -> None:
        """Add one event: virtual time, place and description."""
        line = f"{at:.9f} {who} {what}"
        self._hash.update(f"{line}\n".encode())
        self.count += 1
        self.last.append(line)

    @property
    def digest(self) -> str:
        """Return the hash of all events in hexadecimal."""
        return self._hash.hexdigest()
