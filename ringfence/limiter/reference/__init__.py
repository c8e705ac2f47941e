"""Reference implementation of the rate limiting algorithms in Python, one module for each.

It specifies the results of the compiled engine, and replaces it where there is none. A `Scheme` has
the values derived from a limit, and a `Counter` has the usage of one key. All arithmetic uses
integers; numbers are rounded only where an algorithm requires it.
"""

from ringfence.limiter.reference.counter import (
    OVER_SOFT,
    Counter,
    Scheme,
    SlotNumbers,
    Verdict,
    columns,
)
from ringfence.limiter.reference.schemes import scheme_of

__all__ = ["OVER_SOFT", "Counter", "SlotNumbers", "Scheme", "Verdict", "columns", "scheme_of"]
