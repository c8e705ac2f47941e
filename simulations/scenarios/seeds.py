"""Random streams derived from one root seed by name: a new draw in one shifts no other."""

from hashlib import blake2b
from random import Random

__all__ = ["stream"]


def stream(seed: int, *names: str | int) -> Random:
    """Make the stream that `names` name, the same in every process for equal arguments."""
    text = "/".join([str(seed), *map(str, names)])
    return Random(  # noqa: S311 - a simulation must be repeatable, not unpredictable.
        int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")
    )
