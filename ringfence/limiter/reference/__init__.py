"""The algorithms, one readable module each: the specification, and the engine of today.

A `Scheme` is a limit worked out for counting, shared by all keys; a `Counter` is what one key has
used. Integers throughout: nothing is rounded that its definition does not round.
"""

from ringfence.limiter.reference.counter import (
    OVER_SOFT,
    Counter,
    LeaseIds,
    Scheme,
    Verdict,
    columns,
)
from ringfence.limiter.reference.schemes import scheme_of

__all__ = ["OVER_SOFT", "Counter", "LeaseIds", "Scheme", "Verdict", "columns", "scheme_of"]
