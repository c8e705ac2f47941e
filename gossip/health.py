"""How well this member itself does: the local health multiplier of Lifeguard.

A member that hears nothing back should first doubt itself, and give others more time.
"""

__all__ = ["LocalHealth"]


class LocalHealth:
    """A score from 0, well, to `most`; each step makes probes that much slower."""

    def __init__(self, most: int, *, is_used: bool) -> None:
        self.score = 0
        self._most = most if is_used else 0

    def change(self, by: int) -> None:
        """Worsen by a positive number of steps, recover by a negative one."""
        self.score = max(0, min(self._most, self.score + by))

    def scaled(self, duration_ns: int) -> int:
        """How long something that takes `duration_ns` when well may take now."""
        return duration_ns * (1 + self.score)
