"""P17: the time to scan a frame for denied checks is linear in the size of the frame."""

import time

from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from ringfence.limiter import Code, Limit, Outcomes
from ringfence.wire import MAX_KEYS, Batch, Op, Results, Source


async def test_a_full_frame_of_denied_split_keys_is_scanned_in_a_tenth_of_a_second() -> None:
    borrowing = SplitBorrowing(lambda name: None, lambda: 0, Counters())
    borrowing.rules = {bytes(8): Limit(1, 1)}
    zeros = [0] * MAX_KEYS
    batch = Batch(
        Op.CHECK, [bytes(8) + number.to_bytes(8, "big") for number in range(MAX_KEYS)], zeros
    )
    outcomes = Outcomes([Code.DENIED] * MAX_KEYS, zeros, zeros, zeros, zeros, zeros, zeros)
    started = time.process_time()

    for _ in range(5):
        await borrowing.borrow(batch, Results(outcomes, [Source.OWNER] * MAX_KEYS))

    assert time.process_time() - started < 0.5


def test_a_full_frame_of_permanent_denials_is_corrected_in_a_tenth_of_a_second() -> None:
    borrowing = SplitBorrowing(lambda name: None, lambda: 0, Counters())
    borrowing.rules = {bytes(8): Limit(MAX_KEYS, 3600)}
    keys = [bytes(8) + number.to_bytes(8, "big") for number in range(MAX_KEYS)]
    batch = Batch(Op.CHECK, keys, [*range(MAX_KEYS)])
    zeros = [0] * MAX_KEYS
    frames = [
        Outcomes([Code.NEVER] * MAX_KEYS, zeros, zeros, [*zeros], zeros, zeros, zeros)
        for _ in range(5)
    ]
    started = time.process_time()

    for outcomes in frames:
        borrowing.correct_denials(batch, outcomes)

    assert time.process_time() - started < 0.5
    assert frames[0].codes == [Code.DENIED] * MAX_KEYS
