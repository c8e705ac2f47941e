"""Counters of answers as the limiter reads them."""

from ringfence.limiter import Snapshot
from ringfence.wire import Counts


def as_snapshot(counts: Counts) -> Snapshot:
    return Snapshot(counts.keys, counts.states, counts.limits, counts.which, counts.remote_counts)
