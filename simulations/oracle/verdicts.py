"""Verdict on one question, from the bounds of the units in use."""

from simulations.oracle.intervals import Bound, Question, Verdict
from simulations.oracle.replay import LONGEST_NS
from simulations.oracle.terms import Terms

__all__ = ["bound_of"]


def bound_of(
    terms: Terms, question: Question, least: int, most: int, shortest: int, longest: int
) -> Bound:
    """Return the bound of a question. `shortest` and `longest` are its waits if it is denied."""
    wanted = question.cost or 1
    is_permanent = wanted > terms.ceiling
    if is_permanent or least + wanted > terms.ceiling:
        verdict = Verdict.MUST_DENY
    elif most + wanted <= terms.ceiling:
        verdict = Verdict.MUST_ALLOW
    else:
        verdict = Verdict.EITHER
    if is_permanent or verdict is Verdict.MUST_ALLOW:
        shortest, longest = 1, 0
    shortest, longest = min(shortest, LONGEST_NS), min(longest, LONGEST_NS)
    return Bound(least, max(least, most), verdict, is_permanent, shortest, longest)
