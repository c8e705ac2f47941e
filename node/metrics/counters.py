"""Plain counters of a node, by name; `ringfence members` shows them."""

from collections import Counter

from ringfence.limiter import Code
from ringfence.wire import Op, Results

__all__ = ["Counters"]

_ALLOWED = Code.ALLOWED.value
_ALWAYS = (
    *("checks", "allowed", "over_soft", "denied", "uncharged", "unknown_rule"),
    *("charges", "overdrawn", "refunds", "resets", "forwarded", "decided_as_standby", "undecided"),
    *("renewals", "slots_called", "repeated", "repeated_checks", "shed", "stalls"),
    *("reloads", "reloads_refused", "reports", "repeated_reports"),
    *("reported_allowed", "reported_denied", "reported_undecided"),
    *("borrowed", "overruled_limits"),
    *("leases", "lease_spent", "leases_recalled", "denials_lifted"),
    *("copies_sent", "keys_copied", "copies_lost", "copies_late", "copies_received"),
    "keys_not_copied",
    *("shards_given", "keys_given", "shards_pulled", "keys_pulled", "shards_taken"),
    *("parts_pulled", "transfers_broken", "splits_healed", "hits_merged", "states_refused"),
    *("clock_suspect", "clock_trusted", "hits_recalled"),
    *("cells_sent", "cells_received", "cells_lost", "cells_refused"),
    *("digests_sent", "digests_differed"),
    *("gossip_probes", "gossip_probes_failed", "gossip_indirect_probes", "gossip_nacks"),
    *("gossip_saved_indirectly", "gossip_suspicions", "gossip_deaths", "gossip_returns"),
    *("gossip_refutations", "gossip_own_pauses", "gossip_damped", "gossip_exchanges"),
    *("gossip_updates_sent", "gossip_updates_stale"),
)
"""Counters that exist from the start, so that a counter of 0 differs from a misspelt name."""
_NAMES = {
    Op.REFUND: "refunds",
    Op.RESET: "resets",
    Op.CHARGE: "charges",
    Op.RENEW: "renewals",
}


class Counters:
    """Monotonic counters since the start of the node."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_ALWAYS, 0))

    def add(self, name: str, count: int = 1) -> None:
        """Increase the counter with this name."""
        self._counts[name] += count

    def refused(self, cause: str) -> None:
        """Count a refused request or connection, by the cause of the refusal."""
        self._counts[f"refused_{cause}"] += 1

    def decided(self, op: Op, results: Results, *, as_standby: bool) -> None:
        """Count the checks of a batch that this node decided as owner or standby."""
        counts = self._counts
        rows = len(results.outcomes)
        codes = results.outcomes.codes
        if op is not Op.CHECK:
            counts[_NAMES[op]] += rows
            counts["overdrawn"] += codes.count(Code.OVERDRAWN)
            return
        counts["checks"] += rows
        allowed = codes.count(_ALLOWED)
        counts["allowed"] += allowed
        if allowed != rows:
            over_soft = codes.count(Code.OVER_SOFT)
            counts["allowed"] += over_soft
            counts["over_soft"] += over_soft
            counts["denied"] += codes.count(Code.DENIED) + codes.count(Code.NEVER)
            counts["uncharged"] += codes.count(Code.UNCHARGED)
            counts["unknown_rule"] += codes.count(Code.UNKNOWN_RULE)
        if as_standby:
            counts["decided_as_standby"] += rows

    def as_dict(self) -> dict[str, int]:
        """Return all counters, sorted by name."""
        return dict(sorted(self._counts.items()))
