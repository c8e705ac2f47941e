"""Independent oracle of the rate limiting algorithms.

It shares no code with `ringfence`: it is written from the documented semantics, with fractions and
sums over whole histories instead of the limiter's incremental arithmetic. `Replay` gives the exact
answers of one key at known instants.
"""

from simulations.oracle.replay import Answer, Code, Replay
from simulations.oracle.terms import Terms

__all__ = ["Answer", "Code", "Replay", "Terms"]
