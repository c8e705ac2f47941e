"""Limit of the number of checks that wait for one member, adapted to the time that answers take."""

__all__ = ["QueueLimit"]

_HIGH_SHARE = 0.75
"""Part of the deadline: an answer that takes longer shows that too many checks wait."""
_MIN_ROWS = 64


class QueueLimit:
    """Limit of the checks that wait for one member or are in flight: additive increase,
    multiplicative decrease.

    With more checks than the member decides within the deadline, all answers would be late. Checks
    beyond the limit are shed immediately.
    """

    __slots__ = ("_cut_at", "_most", "rows", "waiting")

    def __init__(self, most: int) -> None:
        """`most` is the highest number of checks that the limit can allow."""
        self.waiting = 0
        """Rows that wait or are in flight."""
        self.rows = most
        """Current maximum of rows that wait or are in flight."""
        self._most = most
        self._cut_at = float("-inf")

    def has_room(self, rows: int, *, is_refund: bool = False) -> bool:
        """Return whether the given number of additional checks may wait for the member.

        Refunds may fill the queue up to twice the highest limit: a lost refund is a lost unit.
        """
        return self.waiting + rows <= (2 * self._most if is_refund else self.rows)

    def adapt(self, share: float, answered: int, sent_at: float, now: float) -> None:
        """Reduce the limit when an answer took most of the deadline, otherwise increase it.

        `share` is the part of the deadline that the answer took, `answered` its number of rows, and
        `sent_at` the time at which its frame was sent. As in TCP, the limit is reduced once per
        round trip: frames sent before a reduction show the load before it.
        """
        if share <= _HIGH_SHARE:
            self.rows = min(self._most, self.rows + 1 + answered // 2)
        elif sent_at > self._cut_at:
            self._cut_at = now
            self.rows = max(_MIN_ROWS, min(self.rows, self.waiting) * 3 // 4)
