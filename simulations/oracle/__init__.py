"""Independent oracle of the rate limiting algorithms.

It shares no code with `ringfence`: it is written from the documented semantics. It uses fractions
and sums over whole histories instead of incremental arithmetic. `Replay` gives the exact answers of
one key at known instants. `bounds` gives the certain bounds of each decision when instants and
units are only known as intervals, as in the ledger of a run.
"""

from simulations.oracle.bounds import bounds
from simulations.oracle.intervals import Bound, Drain, Question, Reading, Refund, Spend, Verdict
from simulations.oracle.readings import narrowed
from simulations.oracle.replay import Answer, Code, Replay
from simulations.oracle.terms import Terms

__all__ = [
    "Answer",
    "Bound",
    "Code",
    "Drain",
    "Question",
    "Reading",
    "Refund",
    "Replay",
    "Spend",
    "Terms",
    "Verdict",
    "bounds",
    "narrowed",
]
