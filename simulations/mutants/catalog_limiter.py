"""Mutants (planted bugs) in the algorithms and in all-or-nothing groups."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["LIMITER"]

_REFERENCE = "ringfence.limiter.reference"
_FIXED = f"{_REFERENCE}.window:Window.check"
_SLIDING = f"{_REFERENCE}.sliding_window:SlidingWindow.check"
_LOG = f"{_REFERENCE}.sliding_log:SlidingLog"
_BUCKET = f"{_REFERENCE}.bucket"

LIMITER = (
    Mutant(
        "one-too-many",
        "a fixed window admits one unit too many",
        (
            Edit(
                _FIXED, "if used + wanted > scheme.ceiling:", "if used + cost > scheme.ceiling + 1:"
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "one-too-few",
        "a sliding window log denies the last unit of the limit",
        (Edit(f"{_LOG}.check", "if used + wanted > ceiling:", "if used + wanted >= ceiling:"),),
        ("algorithms",),
    ),
    Mutant(
        "window-kept-too-long",
        "a fixed window keeps its count in the next window",
        (Edit(_FIXED, "if now >= end:", "if now >= end + (end - start):"),),
        ("algorithms",),
    ),
    Mutant(
        "window-number-off-by-one",
        "window numbers are one too small, so units after a window's end are admitted",
        (
            Edit(
                f"{_REFERENCE}.fixed_window:FixedWindowScheme.window",
                "(start, start + self._period_ns)",
                "(start, start + self._period_ns // 2)",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "edge-counted-twice",
        "a sliding window counts the previous window in full",
        (
            Edit(
                _SLIDING,
                "used += oldest * ((slot + 1) * slot_ns - now) // slot_ns - oldest",
                "pass",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "window-before-ignored",
        "a sliding window ignores the previous window",
        (
            Edit(
                _SLIDING,
                "used += oldest * ((slot + 1) * slot_ns - now) // slot_ns - oldest",
                "used -= oldest",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "overlap-reversed",
        "the previous window is weighted by its elapsed part instead of the rest",
        (
            Edit(
                _SLIDING,
                "((slot + 1) * slot_ns - now) // slot_ns",
                "(now - slot * slot_ns) // slot_ns",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "log-expires-early",
        "a sliding window log removes hits after half of the period",
        (
            Edit(
                f"{_LOG}._expire",
                "oldest_kept = now - self.scheme.period_ns",
                "oldest_kept = now - self.scheme.period_ns // 2",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "refill-off-by-one",
        "a token bucket refills one unit too many per period",
        (
            Edit(
                f"{_BUCKET}:BucketScheme.__init__",
                "units = max(limit.amount, 1)",
                "units = max(limit.amount, 1) + 1",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "denials-charged",
        "a bucket charges denied checks",
        (
            Edit(
                f"{_BUCKET}:Bucket.check",
                "code = NEVER if wanted > scheme.ceiling else DENIED",
                "self.tat += scheme.unit\ncode = NEVER if wanted > scheme.ceiling else DENIED",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "delayed-by-own-cost",
        "in queue mode, a check waits for its own units too",
        (
            Edit(
                f"{_BUCKET}:Bucket.check",
                "delay = -(-level // ticks_per_ns) if scheme.is_queue else 0",
                "delay = -(-after // ticks_per_ns) if scheme.is_queue else 0",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "queue-not-delayed",
        "in queue mode, checks are admitted without a delay",
        (
            Edit(
                f"{_BUCKET}:Bucket.check",
                "delay = -(-level // ticks_per_ns) if scheme.is_queue else 0",
                "delay = 0",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "remaining-without-own-cost",
        "a fixed window states the units that were left before the check",
        (Edit(_FIXED, "scheme.ceiling - used,\n", "scheme.ceiling - used + cost,\n"),),
        ("algorithms",),
    ),
    Mutant(
        "margin-not-stated",
        "a bucket does not state that a check used the soft margin",
        (
            Edit(
                f"{_BUCKET}:Bucket.check",
                "ALLOWED if level <= scheme.hard_capacity else OVER_SOFT",
                "ALLOWED",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "cost-ignored",
        "every check costs one unit, whatever its cost",
        (Edit(_FIXED, "used += cost", "used += 1"),),
        ("costs",),
    ),
    Mutant(
        "retry-after-dropped",
        "a fixed window returns a retry time of zero",
        (Edit(_FIXED, "0 if wanted > scheme.ceiling else left,", "0,"),),
        ("algorithms",),
    ),
    Mutant(
        "group-half-charged",
        "a check that one of two limits denies is charged to the other limit",
        (
            Edit(
                "ringfence.limiter.groups:decide_group",
                "if member.table is not None and member.cost and _is_admitted(row):",
                "if False:",
            ),
        ),
        ("costs",),
    ),
    Mutant(
        "refunded-twice",
        "a refund is applied twice",
        (
            Edit(
                "ringfence.limiter.engine:Engine.refund",
                "each.table.refund_only(each.key, each.cost, now, *of_row)",
                "each.table.refund_only(each.key, 2 * each.cost, now, *of_row)",
            ),
        ),
        ("refunds",),
    ),
    Mutant(
        "refund-ignored",
        "a refund has no effect",
        (
            Edit(
                "ringfence.limiter.engine:Engine.refund",
                "0 if each.table is None else",
                "0 if True else",
            ),
        ),
        ("refunds",),
    ),
    Mutant(
        "charge-recorded-late",
        "a node records a token's charge after its decision, so a refund from a log does not match",
        (
            Edit(
                "node.requests.sessions.sent_answers:Sender.note",
                "self.ledger.charged(batch, results, now)",
                "self.ledger.charged(batch, results, self.ledger.now())",
            ),
            Edit(
                "node.requests.refunds.refund_ledger:RefundLedger.bound",
                "age = limit.refund_age_ns(now - charges.last)",
                "age = now - charges.last",
            ),
        ),
        ("own-refunds",),
    ),
    Mutant(
        "refund-of-last-charge",
        "a refund of a token's charges matches only the last of them",
        (
            Edit(
                "node.requests.refunds.refund_ledger:RefundLedger.bound",
                "age = min(limit.refund_age_ns(now - charges.first), limit.period_ns - 1)",
                "pass",
            ),
        ),
        ("own-refunds",),
    ),
    Mutant(
        "charge-forgiven",
        "a charge counts nothing beyond the limit",
        (
            Edit(
                "ringfence.limiter.engine:Engine.charge_now",
                "member.table.charge_now(member.key, member.cost, now, member.limit)",
                "member.table.charge_now(member.key, min(member.cost, max(0, member.table.limit"
                ".ceiling - member.table.used(member.key, now))), now, member.limit)",
            ),
        ),
        ("charges",),
    ),
    Mutant(
        "charge-too-large",
        "a charge counts one unit more than it costs",
        (
            Edit(
                "ringfence.limiter.engine:Engine.charge_now",
                "member.table.charge_now(member.key, member.cost, now, member.limit)",
                "member.table.charge_now(member.key, member.cost + 1, now, member.limit)",
            ),
        ),
        ("charges",),
    ),
)
