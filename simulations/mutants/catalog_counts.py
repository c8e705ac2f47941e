"""Mutants (planted bugs) in the exchange of counts between data centers."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["COUNTS"]

_MERGE = "ringfence.limiter.reference.shared:Shared._merged"
_SUM = "ringfence.limiter.reference.shared:SharedWindow._sum"
_LOCAL_COUNTS = "ringfence.limiter.reference.shared:SharedWindow.local_counts"

COUNTS = (
    Mutant(
        "merge-by-sum",
        "a merge adds remote counts instead of keeping the maximum",
        (Edit(_MERGE, "fitting(count - known.get(number, 0),", "fitting(count,"),),
        ("two-centers",),
    ),
    Mutant(
        "future-cells-taken",
        "counts of future windows are accepted",
        (
            Edit(
                _MERGE,
                "if number > numbers.current and number != numbers.next:",
                "if False:",
            ),
        ),
        ("clock-ahead",),
    ),
    Mutant(
        "current-cells-refused",
        "counts of the current window are rejected as future ones",
        (Edit(_MERGE, "if number > numbers.current and", "if number >= numbers.current and"),),
        ("two-centers",),
    ),
    Mutant(
        "remote-counts-ignored",
        "a fixed window ignores the counts of other data centers",
        (
            Edit(
                _SUM,
                "count += known[at + 1]",
                "pass",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "stale-slot",
        "remote counts of this window are added to the previous one",
        (Edit(_SUM, "max(0, total.slot - known[at])", "max(0, total.slot - known[at]) + 1"),),
        ("two-centers-full",),
    ),
    Mutant(
        "counts-of-the-wrong-window",
        "counts are sent with the number of the previous window",
        (
            Edit(
                _LOCAL_COUNTS,
                "return own.state(now) if own.used(now) else []",
                "return [own.state(now)[0] - 1, own.count] if own.used(now) else []",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "bucket-poured-again",
        "each merge adds the whole remote count to a bucket instead of its increase",
        (
            Edit(
                "ringfence.limiter.reference.shared:SharedBucket.merge_remote",
                "super().charge(merged.increase, now, 0)",
                "super().charge(sum(cells.values()), now, 0)",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "counts-not-sent",
        "counts are not sent to other data centers",
        (
            Edit(
                "node.cross_dc.global_keys:GlobalKeys.on_decided",
                "now, outcomes = self._uptime(), results.outcomes",
                "return",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "lost-cells-forgotten",
        "unacknowledged counts are not sent again",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts._send_counts",
                "for row in part:\n    dissemination.on_lost(row.key, row.since)",
                "pass",
            ),
        ),
        ("far-cut",),
    ),
    Mutant(
        "no-digest-sent",
        "digests of sent counts are never compared between data centers",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts.send_digests",
                "for name in self._keys.others:",
                "for name in ():",
            ),
        ),
        ("far-restart",),
    ),
    Mutant(
        "confirmed-in-flight",
        "counts that change while a message is in flight are dropped",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts._sure_counts",
                "dissemination.on_lost(key, due.since)",
                "pass",
            ),
        ),
        ("far-cut", "two-centers"),
    ),
    Mutant(
        "split-undivided",
        "each data center has the whole amount of a split limit",
        (
            Edit(
                "node.cross_dc.split:_part",
                "return amount // count + (index < amount % count)",
                "return amount",
            ),
        ),
        ("parts",),
    ),
    Mutant(
        "home-decided-anywhere",
        "every data center decides a limit with a home data center",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts.elsewhere",
                'if rule.scope == "home" and',
                "if False and",
            ),
        ),
        ("parts",),
    ),
)
