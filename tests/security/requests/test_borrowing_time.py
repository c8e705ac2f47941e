"""P17: scanning a large frame for denied checks takes a time that grows as the frame does."""

import time

from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from ringfence.limiter import Code, Outcomes
from ringfence.wire import MAX_KEYS, Batch, Op, Results, Source


async def test_a_full_frame_of_denied_split_keys_is_scanned_at_once() -> None:
    borrowing = SplitBorrowing(lambda name: None, lambda: 0, Counters())
    borrowing.rules = {bytes(8)}
    zeros = [0] * MAX_KEYS
    batch = Batch(
        Op.CHECK, [bytes(8) + number.to_bytes(8, "big") for number in range(MAX_KEYS)], zeros
    )
    outcomes = Outcomes([Code.DENIED] * MAX_KEYS, zeros, zeros, zeros, zeros, zeros, zeros)
    began = time.process_time()

    for _ in range(5):
        await borrowing.borrow(batch, Results(outcomes, [Source.OWNER] * MAX_KEYS))

    assert time.process_time() - began < 0.5
