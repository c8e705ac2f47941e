"""Fuzz target: bytes encode a history of two engines, which must always return the same.

`python -m tests.fuzz.compiled_tables --seconds 60 --seed 1`.
"""

import sys
from unittest.mock import patch

from ringfence.limiter.compiled import table
from tests.fuzz.bytes_to_histories import Choices, main
from tests.ringfence.limiter.compiled.pair import COSTS, DAY_NS, GAPS_NS, LIMITS, Pair, key_of

__all__ = ["run"]

RULES, NUMBERS = 4, 6
# The last start is near the largest instant that compiled tables can express.
STARTS = (DAY_NS, 1_700_000_000 * 10**9, 2**62 - DAY_NS)
KEYS = [key_of(rule, number) for rule in range(RULES) for number in range(NUMBERS)]


def run(data: bytes) -> int:
    """Run the history that `data` encodes; return the number of steps."""
    read = Choices(data)
    start = STARTS[read.below(len(STARTS))]
    pair = Pair([read.below(len(LIMITS)) for _ in range(3)], start)
    steps = 0
    # In half of the histories, all but one of the objects become packed rows.
    with patch.object(table, "_MOST_OBJECTS", 1 if read.below(2) else 4096):
        while read:
            steps += _step(pair, read)
        pair.compare(KEYS)
    return steps


def _step(pair: Pair, read: Choices) -> int:
    """Run one step; return as how many steps it counts."""
    kind = read.below(37)
    pair.now += GAPS_NS[read.below(len(GAPS_NS))] if kind % 2 else read.below(20)
    rule_and_number = read.below(RULES), read.below(NUMBERS)
    if kind < 18:
        rows = [_row(read, with_carried=kind < 4) for _ in range(1 + read.below(24))]
        pair.decide(rows)
        return len(rows)
    if kind < 24:
        sizes = [1 + read.below(3) for _ in range(1 + read.below(4))]
        rows = [_row(read, with_carried=kind < 20) for _ in range(sum(sizes))]
        pair.decide(rows, groups=sizes)
        return len(rows)
    match kind:
        case 24:
            pair.refund(*rule_and_number, COSTS[read.below(7)], GAPS_NS[read.below(len(GAPS_NS))])
        case 25:
            carried = read.below(len(LIMITS) + 1) if read.below(2) else 0
            pair.charge_now(*rule_and_number, COSTS[read.below(len(COSTS))], carried)
        case 26:
            carried = read.below(len(LIMITS) + 1) if read.below(2) else 0
            pair.charge(*rule_and_number, COSTS[read.below(9)], GAPS_NS[read.below(9)], carried)
        case 27:
            pair.merge_remote(*rule_and_number, [read.below(99) for _ in range(read.below(5))])
        case 28:
            pair.reset(*rule_and_number)
        case 29:
            shared = {read.below(RULES) for _ in range(read.below(4))}
            pair.set_rules([read.below(len(LIMITS)) for _ in range(read.below(5))], sorted(shared))
        case 30:
            pair.move(KEYS[read.below(9) : 9 + read.below(9)], GAPS_NS[read.below(6)])
        case 31:
            pair.renew(*rule_and_number, read.below(9))
        case 32:
            pair.refund(*rule_and_number, 1, 0, slot_id=read.below(9))
        case 33:
            groups = [
                (
                    GAPS_NS[read.below(len(GAPS_NS))],
                    [_row(read, with_carried=False)[:3] for _ in range(1 + read.below(3))],
                )
                for _ in range(read.below(9))
            ]
            pair.decide_each(groups)
            return sum([len(group) for _, group in groups])
        case 34:
            _reject(read, pair.now)
        case 35:
            pair.decide_lone(*rule_and_number, COSTS[read.below(len(COSTS))])
        case _:
            pair.compare(KEYS)
            pair.peek(KEYS)
    return 1


def _reject(read: Choices, now: int) -> None:
    """Decide a frame that has an error at one place."""
    pair = Pair([read.below(len(LIMITS)) for _ in range(3)], now)
    pair.decide([_row(read, with_carried=False) for _ in range(5)])
    count = (1, 2, 5, 300)[read.below(4)]
    rows = [_row(read, with_carried=False) for _ in range(count)]
    keys: list[object] = [key_of(rule, number) for rule, number, _, _ in rows]
    costs: list[object] = [cost for _, _, cost, _ in rows]
    groups: list[object] = []
    at = read.below(256) % count
    match read.below(6):
        case 0:
            costs[at] = (-1, -(2**70), None, "1")[read.below(4)]
        case 1:
            keys[at] = (None, 5, [])[read.below(3)]
        case 2:
            del costs[at]
        case 3:
            groups = [count, 0]
        case 4:
            groups = [2**70, count - 2**70]
        case _:
            groups = [1 + count // 2] * 2
    pair.reject(keys, costs, groups)


def _row(read: Choices, *, with_carried: bool) -> tuple[int, int, int, int]:
    """Read a check as `Pair.decide` takes it."""
    carried = read.below(len(LIMITS) + 1) if with_carried else 0
    return read.below(RULES), read.below(NUMBERS), COSTS[read.below(len(COSTS))], carried


if __name__ == "__main__":
    sys.exit(main(run, "tests.fuzz.compiled_tables", "steps", size=4000))
