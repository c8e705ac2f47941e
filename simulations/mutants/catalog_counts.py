"""Mistakes in what data centers tell each other."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["COUNTS"]

_MERGE = "ringfence.limiter.reference.shared:Shared._merge"
_SUM = "ringfence.limiter.reference.shared:SharedWindow._sum"
_TOLD = "ringfence.limiter.reference.shared:SharedWindow.told"

COUNTS = (
    Mutant(
        "merge-by-sum",
        "what was heard twice counts twice: the sum is kept in place of the larger count",
        (Edit(_MERGE, "known[number] = count", "known[number] = known.get(number, 0) + count"),),
        ("two-centers",),
    ),
    Mutant(
        "future-cells-taken",
        "counts of windows that have not begun are taken",
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
        "counts of the window that runs are taken for ones to come",
        (Edit(_MERGE, "if number > numbers.current and", "if number >= numbers.current and"),),
        ("two-centers",),
    ),
    Mutant(
        "remote-counts-ignored",
        "each data center decides by its own count of a fixed window alone",
        (
            Edit(
                _SUM,
                "count += sum([known.get(number, 0) for known in self.heard.values()])",
                "pass",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "stale-slot",
        "what others admitted in this window is counted in the one before",
        (Edit(_SUM, "max(0, total.slot - number)", "max(0, total.slot - number) + 1"),),
        ("two-centers",),
    ),
    Mutant(
        "told-off-by-one",
        "the others are told the number of the window before",
        (
            Edit(
                _TOLD,
                "return own.state(now) if own.used(now) else []",
                "return [own.state(now)[0] - 1, own.count] if own.used(now) else []",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "bucket-poured-again",
        "all that another data center ever said is poured into a bucket each time",
        (
            Edit(
                "ringfence.limiter.reference.shared:SharedBucket.hear",
                "super().charge(risen, now, 0)",
                "super().charge(sum(cells.values()), now, 0)",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "nothing-told",
        "the others are not told what was admitted here",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts.admitted",
                "now = self._uptime()",
                "return",
            ),
        ),
        ("two-centers",),
    ),
    Mutant(
        "lost-cells-forgotten",
        "counts that the other side has not confirmed are not told again",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts._tell",
                "for key, _, since in part:\n    spread.lost(key, since)",
                "pass",
            ),
        ),
        ("far-cut",),
    ),
    Mutant(
        "no-digest-sent",
        "what was told is never compared with what the other side has",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts.send_digests",
                "now = self._clock()",
                "return",
            ),
        ),
        ("far-restart",),
    ),
    Mutant(
        "confirmed-in-flight",
        "counts wait for a message under way, and are forgotten meanwhile",
        (
            Edit(
                "node.cross_dc.counts:CrossDcCounts.flush",
                "spread.lost(each[0], each[2])",
                "pass",
            ),
        ),
        ("far-cut", "two-centers"),
    ),
    Mutant(
        "split-undivided",
        "each data center has the whole of a limit that is split among them",
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
        "a limit that one data center decides is decided by whoever is asked",
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
