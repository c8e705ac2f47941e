"""The messages by which a client may decide some checks itself: denials that stand.

Values only, as in `messages`, which names them all; `near` turns these into bytes and back.
"""

from dataclasses import dataclass

__all__ = ["Lifted", "Listen"]


@dataclass(frozen=True, slots=True)
class Listen:
    """A client remembers denials from now on: tell it of those that end before their time.

    Answered by `Done`. A node that does not know this message closes the connection, and is asked
    no more.
    """

    seq: int


@dataclass(frozen=True, slots=True)
class Lifted:
    """What the receiver was denied may pass again, although `retry_after` is not over."""

    keys: list[bytes]
    """Empty for all that the sender ever denied."""
