"""Parts that fuzz targets share: a reader of choices from bytes, and the fuzzing loop."""

import argparse
import sys
import time
from collections.abc import Callable
from random import Random

__all__ = ["Choices", "main"]


class Choices:
    """Reader of choices from bytes. After the last byte, every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def below(self, count: int) -> int:
        """Return a number from 0 to `count` - 1; `count` is at most 256."""
        self._at += 1
        return self._data[self._at - 1] % count if self._at <= len(self._data) else 0

    def take(self, count: int) -> bytes:
        """Return the next bytes unchanged, at most `count`."""
        self._at += count
        return self._data[self._at - count : self._at]


def main(run: Callable[[bytes], int], module: str, unit: str, *, size: int) -> int:
    """Fuzz for `--seconds`; with `--atheris`, the package `atheris` chooses bytes by coverage."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=size, help="bytes per history")
    parser.add_argument("--atheris", action="store_true")
    options = parser.parse_args()
    if options.atheris:
        import atheris

        atheris.Setup([sys.argv[0]], run)
        atheris.Fuzz()
    random = Random(options.seed)
    deadline = time.monotonic() + options.seconds
    units = histories = 0
    while time.monotonic() < deadline:
        data = random.randbytes(random.randrange(options.size))
        try:
            units += run(data)
        except BaseException:
            sys.stderr.write(f"history {histories} of seed {options.seed}: {data.hex()}\n")
            raise
        histories += 1
    sys.stdout.write(f"{units} {unit} in {histories} histories: no errors\n")
    return 0
