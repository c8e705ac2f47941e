"""Time-outs and limits of a link."""

from msgspec import Struct

__all__ = ["LinkSettings"]


class LinkSettings(Struct, frozen=True):
    """Time-outs and limits of a link; times are in seconds."""

    answer_timeout: float = 0.5
    """Maximum silence before a member is pinged. The actual time-out follows the observed
    round trips: their mean plus four deviations. After two time-outs the frames fail, and their
    checks may be sent to another member. After three time-outs, or `slow_timeout` when there is no
    `deadline`, the member counts as lost."""
    answer_timeout_margin: float = 0.2
    """Minimum difference between the time-out and the mean round trip."""
    slow_timeout: float = 1.0
    """Time after which a frame fails in any case. Until then a member that answers other frames is
    busy, and asking a second member would only add load."""
    deadline: float | None = None
    """Seconds that callers wait for a check, when that is less than `slow_timeout`. Requests carry
    it, and members shed checks whose deadline has passed."""
    min_backoff: float = 0.05
    max_backoff: float = 2.0
    """Pause between attempts to reconnect: it doubles from `min_backoff` on, with jitter."""
    handshake_timeout: float = 5.0
    """Handshake time-out: a member that accepts the connection and sends no `Welcome` is lost."""
    max_waiting: int = 65_536
    """Maximum number of checks that wait or are in flight; further checks are shed. With a
    `deadline`, the bound is lower while answers take nearly that long."""
    max_frames: int = 256
    """Maximum number of frames in flight; a member stores at least as many answers per sender."""
    frame_interval: float = 0.0
    """Minimum time between two frames, except for frames with a batch of `LARGE_ROWS` rows. Checks
    of this time share the next frame, because a frame costs much more than one more check. A check
    after a longer pause leaves at once."""
