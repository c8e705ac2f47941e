"""Reference implementation of the algorithms, one module each.

It specifies the compiled engine, and it is the fallback without one. A `Scheme` has the values
derived from a limit, and a `Counter` has the usage of one key. All arithmetic uses integers; only
roundings that an algorithm defines take place.
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
