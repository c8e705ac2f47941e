"""Memory of the units that other data centers have lent, so that refunds can give them back."""

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from ringfence.wire import CheckId

__all__ = ["BorrowedUnits", "Loan"]

_MAX_KEYS = 10_000
_MAX_LOANS = 8
"""Most loans of one key for each lender. The two oldest are merged when there are more."""
_MAX_ASKED = 16_384
"""Most checks whose repeats are recognized: the newest."""
_LAST_NS = 1_000_000_000
"""Time before the end of a loan in which it is not given back. Its units are free again soon, and a
delayed refund could remove units of a later window."""


class Loan(NamedTuple):
    """Units that one data center has lent for one key."""

    datacenter: str
    units: int
    asked_at: int
    """Time before the lender counted the units."""
    ends_at: int
    """Time at which the lender still counts the units for certain, without further checks."""


class BorrowedUnits:
    """Loans by key. Their number is bounded: the key without a new loan for longest is dropped."""

    def __init__(self) -> None:
        self._loans: OrderedDict[bytes, list[Loan]] = OrderedDict()
        """Oldest loan first. The key with the newest loan is last."""
        self._asked: dict[tuple[str, CheckId], None] = {}
        """Checks that were sent to lenders."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._loans

    def __len__(self) -> int:
        return len(self._loans)

    def is_first_ask(self, datacenter: str, check: CheckId) -> bool:
        """Record that a lender is asked for a check; return False if it was asked before.

        A lender counts a check once, and repeats the first answer. So a repeat adds no loan.
        """
        if not check[1]:
            return True
        if (datacenter, check) in self._asked:
            return False
        self._asked[datacenter, check] = None
        if len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]
        return True

    def add(self, key: bytes, loan: Loan, now: int) -> None:
        """Add the newest loan of a key, and drop its loans that have ended."""
        if not loan.units or _is_over(loan, now):
            return
        loans = [each for each in self._loans.pop(key, []) if each.ends_at > now]
        self._loans[key] = _merged([*loans, loan], loan.datacenter)
        if len(self._loans) > _MAX_KEYS:
            self._loans.popitem(last=False)

    def take(
        self, key: bytes, units: int, datacenters: Collection[str], now: int
    ) -> list[tuple[Loan, int]]:
        """Remove up to `units` of the newest loans of a key; return the loans and the units of
        each.

        Only loans of `datacenters` are removed. Units are removed before they are given back, so
        two refunds cannot give back the same units.
        """
        taken: list[tuple[Loan, int]] = []
        kept: list[Loan] = []
        for loan in reversed(self._loans.get(key, [])):
            if _is_over(loan, now):
                continue
            part = min(units, loan.units) if loan.datacenter in datacenters else 0
            units -= part
            if part:
                taken.append((loan, part))
            if part < loan.units:
                kept.append(loan._replace(units=loan.units - part))
        if kept:
            self._loans[key] = kept[::-1]
        else:
            self._loans.pop(key, None)
        return taken


def _is_over(loan: Loan, now: int) -> bool:
    return loan.ends_at - now <= _LAST_NS


def _merged(loans: list[Loan], datacenter: str) -> list[Loan]:
    """Return the loans of a key, with the two oldest of one lender merged if it has too many.

    The merged loan has the times of the oldest one. So a refund never removes newer units instead.
    """
    own = [at for at, loan in enumerate(loans) if loan.datacenter == datacenter]
    if len(own) <= _MAX_LOANS:
        return loans
    first, second = own[:2]
    units = loans[first].units + loans[second].units
    loans[first] = loans[first]._replace(units=units)
    del loans[second]
    return loans
