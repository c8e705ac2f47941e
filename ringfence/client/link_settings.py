"""How patient a link is, and how much may wait for it."""

from dataclasses import dataclass

__all__ = ["LinkSettings"]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How patient a link is; times in seconds."""

    answer_timeout: float = 0.5
    """A frame not answered for so long is given up; the caller may ask elsewhere."""
    backoff_least: float = 0.05
    backoff_most: float = 2.0
    """Pause between attempts to reach a lost member, doubling from least to most, jittered."""
    welcome_timeout: float = 5.0
    """A member that accepts a connection but does not say welcome for so long is lost."""
    max_waiting: int = 65_536
    """Checks waiting or in flight; one more is given up at once."""
    max_frames: int = 256
    """Frames in flight; a member remembers at least as many answers per sender."""
