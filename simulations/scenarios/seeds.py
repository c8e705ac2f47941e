"""Independent random streams, derived from one seed by name.

Random numbers drawn from one stream do not affect another stream.
"""

from hashlib import blake2b
from random import Random

__all__ = ["stream"]


def stream(seed: int, *names: str | int) -> Random:
    """Return the random stream of a seed and some names; equal arguments give equal streams in
    every process."""
    text = "/".join([str(seed), *map(str, names)])
    return Random(  # noqa: S311 - a simulation must be repeatable, not unpredictable.
        int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")
    )
