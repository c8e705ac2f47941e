"""Sweeps over the questions of a key, with the units that count at each of them.

Two extreme histories bound the units in use. In the lower one, only certain units count, as early
as possible, and every possible refund is taken off. In the upper one, all possible units count, as
late as possible, and only certain refunds are taken off.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from simulations.oracle.intervals import Question
from simulations.oracle.sums import Sums

__all__ = ["Item", "Tally", "lower_sweep", "upper_sweep"]

Item: TypeAlias = tuple[int, int, int]
"""(instant from which it counts, position, units)"""


class Tally:
    """Sums by position of the units that count at a question."""

    __slots__ = ("returned", "spent")

    def __init__(self, spent: Sums, returned: Sums) -> None:
        self.spent = spent
        self.returned = returned

    def above(self, position: int) -> int:
        """Return the units at all higher positions, without the refunded ones."""
        return self.spent.above(position) - self.returned.above(position)


def lower_sweep(
    questions: Sequence[Question], spent: Sequence[Item], returned: Sequence[Item]
) -> Iterator[tuple[int, Tally]]:
    """Give the index of each question, and the units of the lower history.

    Units count when their instant is before a question; refunds, when it is not after its end.
    """
    order = sorted(range(len(questions)), key=lambda at: questions[at].earliest)
    latest = -1
    from_when: list[int] = []
    for at in order:
        latest = max(latest, questions[at].latest)
        from_when.append(latest)
    instants = [questions[at].earliest - 1 for at in order]
    yield from _swept(order, spent, instants, returned, from_when)


def upper_sweep(
    questions: Sequence[Question], spent: Sequence[Item], returned: Sequence[Item]
) -> Iterator[tuple[int, Tally]]:
    """Give the index of each question, and the units of the upper history.

    Units count when their instant is not after the end of a question; refunds, when it is before a
    question.
    """
    order = sorted(range(len(questions)), key=lambda at: questions[at].latest)
    from_when: list[int] = []
    earliest: int | None = None
    for at in reversed(order):
        this = questions[at].earliest
        earliest = this if earliest is None else min(earliest, this)
        from_when.append(earliest - 1)
    from_when.reverse()
    instants = [questions[at].latest for at in order]
    yield from _swept(order, spent, instants, returned, from_when)


def _swept(
    order: Sequence[int],
    spent: Sequence[Item],
    spent_until: Sequence[int],
    returned: Sequence[Item],
    returned_until: Sequence[int],
) -> Iterator[tuple[int, Tally]]:
    tally = Tally(Sums(item[1] for item in spent), Sums(item[1] for item in returned))
    add_spent, add_returned = _adder(tally.spent, spent), _adder(tally.returned, returned)
    for at, spent_end, returned_end in zip(order, spent_until, returned_until, strict=True):
        add_spent(spent_end)
        add_returned(returned_end)
        yield at, tally


def _adder(sums: Sums, items: Sequence[Item]) -> Callable[[int], None]:
    """Return a function that adds all further items up to an instant."""
    queue = sorted(items)
    done = 0

    def add_until(instant: int) -> None:
        nonlocal done
        while done < len(queue) and queue[done][0] <= instant:
            _, position, units = queue[done]
            if units:
                sums.add(position, units)
            done += 1

    return add_until
