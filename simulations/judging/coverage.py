"""Coverage of rare events: events that must occur in a batch of runs.

Code for an event that never occurs is never tested.
"""

from collections import Counter
from collections.abc import Mapping

from simulations.scenarios.scenario import Level

__all__ = ["WANTED", "count_marks"]

_COUNTERS = {
    "refutation_won": "gossip_refutations",
    "indirect_ack_saved": "gossip_saved_indirectly",
    "member_died": "gossip_deaths",
    "own_pause_noticed": "gossip_own_pauses",
    "damped": "gossip_damped",
    "replay_rejected": "gossip_refused_replayed",
    "shard_given": "shards_given",
    "part_pulled": "parts_pulled",
    "transfer_broken": "transfers_broken",
    "shard_taken_over": "shards_taken",
    "split_healed": "splits_healed",
    "hits_merged": "hits_merged",
    "decided_as_standby": "decided_as_standby",
    "forwarded": "forwarded",
    "asked_the_wrong_node": "refused_not_owner",
    "copy_lost": "copies_lost",
    "repeat_answered": "repeated",
    "error_contained": "internal_errors_session",
    "clock_suspect": "clock_suspect",
    "clock_trusted_again": "clock_trusted",
    "cells_lost": "cells_lost",
    "digest_repaired": "digests_differed",
    "cells_refused": "cells_refused",
    "units_lent": "leases",
}

_SEALED_ONLY = ("replay_rejected",)
"""Events of encrypted datagrams, which the core level does not have."""

WANTED: dict[Level, tuple[str, ...]] = {
    "node": tuple(_COUNTERS),
    "core": tuple(mark for mark in _COUNTERS if mark not in _SEALED_ONLY),
}
"""Events that a batch of generated runs must cover, by level."""


def count_marks(counters: Mapping[str, int]) -> Counter[str]:
    """Count the rare events of a run from the metric counters of all nodes."""
    found = {mark: counters.get(name, 0) for mark, name in _COUNTERS.items()}
    return Counter({mark: count for mark, count in found.items() if count})
