"""Windows that begin with the first hit of a key, when the counters of two members are merged.

A fallback log has only the part of the period of each hit. So a window that begins with a charge of
the log would end too late. The counters of the member that logged the hits have its start.
"""

from node.shards.transfers.unacknowledged_transfers import append_row
from ringfence.limiter import Limit, Snapshot

__all__ = ["earlier_windows"]


def earlier_windows(mine: Snapshot, theirs: Snapshot, older_ns: int) -> Snapshot:
    """Return the windows of `mine` that began earlier in `theirs`, with this earlier start.

    `theirs` was taken `older_ns` before `mine`.
    """
    rows = dict(zip(theirs.keys, range(len(theirs.keys)), strict=True))
    earlier = Snapshot([], [], [], [], [])
    for at, key in enumerate(mine.keys):
        limit, row = mine.limits[mine.which[at]], rows.get(key)
        if row is None or not theirs.states[row]:
            continue
        age_ns = theirs.states[row][0] + older_ns
        is_same = _has_same_windows(limit, theirs.limits[theirs.which[row]])
        if is_same and mine.states[at][0] < age_ns < limit.period_ns:
            append_row(earlier, mine, at)
            earlier.states[-1] = [age_ns, *mine.states[at][1:]]
    return earlier


def _has_same_windows(one: Limit, other: Limit) -> bool:
    """Return whether the windows of both limits begin with a first hit and have one length."""
    return one.first_hit and other.first_hit and one.period_ns == other.period_ns
