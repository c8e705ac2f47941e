"""How patient a link is, and how much may wait for it."""

from dataclasses import dataclass

__all__ = ["LinkSettings"]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How patient a link is; times in seconds."""

    answer_timeout: float = 0.5
    """A frame not answered for so long is given up, when nothing else was answered either for so
    long; the caller may ask elsewhere."""
    slow_timeout: float = 1.0
    """A frame is given up after so long in any case. Until then a member that answers others is
    waited for: it is busy, and asking another one as well would only add to the work, and have
    the check counted twice until it is taken back."""
    told_timeout: float | None = None
    """What members are told of our patience with a check when callers have less than
    `slow_timeout`: a standby gives the owner a part of it before it decides."""
    backoff_least: float = 0.05
    backoff_most: float = 2.0
    """Pause between attempts to reach a lost member, doubling from least to most, jittered."""
    welcome_timeout: float = 5.0
    """A member that accepts a connection but does not say welcome for so long is lost."""
    max_waiting: int = 65_536
    """Checks waiting or in flight; one more is given up at once."""
    max_frames: int = 256
    """Frames in flight; a member remembers at least as many answers per sender."""
