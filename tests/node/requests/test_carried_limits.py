"""Limits that clients send with their checks."""

from node.requests.carried_limits import overrule, oversized
from ringfence.limiter import MAX_CARRIED_SLOTS, NS_PER_SECOND, Limit
from ringfence.wire import Batch, ErrorCode, Op

HOUR_NS = 3600 * NS_PER_SECOND
PLAIN, MAX = Limit.of_ns(5, HOUR_NS), Limit.of_ns(5, HOUR_NS, slots=MAX_CARRIED_SLOTS)
KNOWN, UNKNOWN = (1).to_bytes(8, "big"), (2).to_bytes(8, "big")


def batch_of(*rows: tuple[bytes, int], limits: list[Limit]) -> Batch:
    keys, which = [key for key, _ in rows], [number for _, number in rows]
    return Batch(Op.CHECK, keys, [1] * len(rows), limits=limits, which=which)


def test_a_limit_with_the_maximum_slots_is_accepted_and_above_rejected() -> None:
    more = Limit.of_ns(5, HOUR_NS, slots=72)

    refused = oversized(7, batch_of((UNKNOWN, 1), limits=[PLAIN, more]))

    assert oversized(7, batch_of((UNKNOWN, 1), limits=[PLAIN, MAX])) is None
    assert refused is not None
    assert (refused.seq, refused.code) == (7, ErrorCode.NOT_PERMITTED)


def test_known_rules_decide_their_keys_and_other_keys_use_sent_limits() -> None:
    batch = batch_of((KNOWN, 1), (UNKNOWN, 1), (KNOWN, 0), limits=[PLAIN])

    assert overrule(batch, lambda number: number == 1) == 1
    assert (batch.which, batch.limits) == ([0, 1, 0], [PLAIN])


def test_without_remaining_limits_none_are_forwarded() -> None:
    batch = batch_of((KNOWN, 1), (KNOWN, 2), limits=[PLAIN, MAX])

    assert overrule(batch, lambda number: True) == 2
    assert (batch.which, batch.limits) == ([], [])
