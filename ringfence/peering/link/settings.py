"""How patient a link is, and how much may wait for it."""

from dataclasses import dataclass

__all__ = ["LinkSettings"]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How patient a link is; times in seconds."""

    answer_timeout: float = 0.5
    """Most seconds of silence after which a member is doubted and pinged; twice as long, and frames
    are given up: what they asked may be asked elsewhere. Three times as long, and `slow_timeout`
    where there is no `deadline`, and the member is lost. Usually it is less: the mean of the
    observed round trips plus four deviations."""
    answer_timeout_least: float = 0.2
    """Silence above the mean round trip for which no member is doubted."""
    slow_timeout: float = 1.0
    """A frame is given up after so long in any case. Until then a member that answers others is
    waited for: it is busy, and asking another one as well would only add to the work."""
    deadline: float | None = None
    """Seconds that callers wait for a check, when that is less than `slow_timeout`. Requests carry
    it, and members shed checks whose deadline has passed."""
    backoff_least: float = 0.05
    backoff_most: float = 2.0
    """Pause between attempts to reach a lost member, doubling from least to most, jittered."""
    welcome_timeout: float = 5.0
    """A member that accepts a connection but does not say welcome for so long is lost."""
    max_waiting: int = 65_536
    """Checks waiting or in flight; one more is shed. With a `deadline` fewer may wait while answers
    come close to it."""
    max_frames: int = 256
    """Frames in flight; a member remembers at least as many answers per sender."""
