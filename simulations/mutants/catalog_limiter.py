"""Mistakes in the algorithms, and in what stands or falls together."""

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
        "a fixed window lets one unit more through than it may",
        (
            Edit(
                _FIXED, "if used + wanted > scheme.ceiling:", "if used + cost > scheme.ceiling + 1:"
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "one-too-few",
        "a log denies the last unit that it should let through",
        (Edit(f"{_LOG}.check", "if used + wanted > ceiling:", "if used + wanted >= ceiling:"),),
        ("algorithms",),
    ),
    Mutant(
        "window-kept-too-long",
        "a fixed window counts on through the next one",
        (Edit(_FIXED, "if now >= end:", "if now >= end + (end - start):"),),
        ("algorithms",),
    ),
    Mutant(
        "window-number-off-by-one",
        "a fixed window begins a period too late, so that what follows its end is let through",
        (
            Edit(
                f"{_REFERENCE}.fixed_window:FixedWindowScheme.window",
                "return start, start + self._period_ns",
                "return start, start + self._period_ns // 2",
            ),
        ),
        ("algorithms",),
    ),
    Mutant(
        "edge-counted-twice",
        "the window before counts in full, whatever part of it is over",
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
        "a sliding window forgets at once what the window before has counted",
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
        "the window before weighs by the part that is over, not by the one that is left",
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
        "a log forgets hits after half of their time",
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
        "a token bucket gives one unit more back in each period",
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
        "a check that a bucket denies is charged all the same",
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
        "cost-ignored",
        "every check costs one unit, whatever it says",
        (Edit(_FIXED, "used += cost", "used += 1"),),
        ("costs",),
    ),
    Mutant(
        "retry-after-dropped",
        "who is denied by a fixed window is told to come back at once",
        (Edit(_FIXED, "0 if wanted > scheme.ceiling else left,", "0,"),),
        ("algorithms",),
    ),
    Mutant(
        "group-half-charged",
        "a check that one of two limits denies is charged to the other one",
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
        "what is given back is given back twice",
        (
            Edit(
                "ringfence.limiter.engine:Engine.refund",
                "member.table.give_back(member.key, member.cost, now, age_ns, lease)",
                "member.table.give_back(member.key, 2 * member.cost, now, age_ns, lease)",
            ),
        ),
        ("refunds",),
    ),
    Mutant(
        "refund-ignored",
        "what is given back stays charged",
        (
            Edit(
                "ringfence.limiter.engine:Engine.refund",
                "if member.table is not None:",
                "if False:",
            ),
        ),
        ("refunds",),
    ),
    Mutant(
        "charge-forgiven",
        "what a charge costs over the limit is not counted",
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
