"""Fuzz target: bytes become a history of two engines, which must never be told apart.

`python -m tests.fuzz.compiled_tables --seconds 60 --seed 1` feeds random bytes and counts the
steps; with the package `atheris` installed, `--atheris` lets coverage guide them.
"""

import argparse
import sys
import time
from random import Random

from tests.ringfence.limiter.compiled.pair import COSTS, DAY_NS, GAPS_NS, LIMITS, Pair, key_of

__all__ = ["run"]

RULES, NUMBERS = 4, 6
KEYS = [key_of(rule, number) for rule in range(RULES) for number in range(NUMBERS)]


class _Choices:
    """Reads choices off bytes; after the last one it always chooses the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        self._at += 1
        return self._data[self._at - 1] % count if self._at <= len(self._data) else 0

    def row(self, *, with_carried: bool) -> tuple[int, int, int, int]:
        """A check as `Pair.decide` takes it."""
        carried = self.below(len(LIMITS) + 1) if with_carried else 0
        return (
            self.below(RULES),
            self.below(NUMBERS),
            COSTS[self.below(len(COSTS))],
            carried,
        )


def run(data: bytes) -> int:
    """Live through the history that `data` spells; return the number of steps."""
    read = _Choices(data)
    start = (DAY_NS, 1_700_000_000 * 10**9, 4 * 10**18)[read.below(3)]
    pair = Pair([read.below(len(LIMITS)) for _ in range(3)], start)
    steps = 0
    while read:
        steps += _step(pair, read)
    pair.compare(KEYS)
    return steps


def _step(pair: Pair, read: _Choices) -> int:
    """Do one thing; return how many checks it stands for."""
    kind = read.below(32)
    pair.now += GAPS_NS[read.below(len(GAPS_NS))] if kind % 2 else read.below(20)
    where = read.below(RULES), read.below(NUMBERS)
    if kind < 18:
        rows = [read.row(with_carried=kind < 4) for _ in range(1 + read.below(24))]
        pair.decide(rows)
        return len(rows)
    if kind < 24:
        sizes = [1 + read.below(3) for _ in range(1 + read.below(4))]
        rows = [read.row(with_carried=kind < 20) for _ in range(sum(sizes))]
        pair.decide(rows, groups=sizes)
        return len(rows)
    match kind:
        case 24:
            pair.refund(*where, COSTS[read.below(7)], GAPS_NS[read.below(len(GAPS_NS))])
        case 25:
            carried = read.below(len(LIMITS) + 1) if read.below(2) else 0
            pair.charge_now(*where, COSTS[read.below(len(COSTS))], carried)
        case 26:
            carried = read.below(len(LIMITS) + 1) if read.below(2) else 0
            pair.charge(*where, COSTS[read.below(9)], GAPS_NS[read.below(9)], carried)
        case 27:
            pair.deliver(*where, [read.below(99) for _ in range(read.below(5))])
        case 28:
            pair.reset(*where)
        case 29:
            shared = {read.below(RULES)} if read.below(4) == 0 else set()
            pair.set_rules([read.below(len(LIMITS)) for _ in range(read.below(5))], sorted(shared))
        case 30:
            pair.move(KEYS[read.below(9) : 9 + read.below(9)], GAPS_NS[read.below(6)])
        case _:
            pair.compare(KEYS)
            pair.peek(KEYS)
    return 1


def main(arguments: list[str]) -> int:
    """Fuzz for a while."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.compiled_tables")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=4000, help="bytes per history")
    parser.add_argument("--atheris", action="store_true")
    options = parser.parse_args(arguments)
    if options.atheris:
        import atheris

        atheris.Setup([sys.argv[0]], run)
        atheris.Fuzz()
    random = Random(options.seed)
    until = time.monotonic() + options.seconds
    steps = histories = 0
    while time.monotonic() < until:
        data = random.randbytes(random.randrange(options.size))
        try:
            steps += run(data)
        except BaseException:
            sys.stderr.write(f"history {histories} of seed {options.seed}: {data.hex()}\n")
            raise
        histories += 1
    sys.stdout.write(f"{steps} steps in {histories} histories: no difference\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
