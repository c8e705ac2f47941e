"""Mutants that no test can detect, each with its reason; `equivalents.toml` lists them.

An entry names the module, the function, the operator and the changed lines before and after. So it
stays valid when other code of the module changes, and ends when this line changes.
"""

import tomllib
from functools import cache
from pathlib import Path

from msgspec import Struct

from simulations.mutants.drawn.sample import DrawnMutant

__all__ = ["Equivalent", "known_equivalents", "reason_of"]

_FILE = Path(__file__).with_name("equivalents.toml")
_ANY = "*"
"""Module or function of an entry that holds everywhere."""


class Equivalent(Struct, frozen=True):
    """Mutation that changes no behaviour that a caller can observe, and the reason."""

    module: str
    function: str
    operator: str
    old: str
    new: str
    reason: str

    def matches(self, mutant: DrawnMutant) -> bool:
        """Return whether this entry describes a mutant."""
        return (
            self.module in (_ANY, mutant.module)
            and self.function in (_ANY, mutant.function)
            and self.operator == mutant.variant.operator
            and _spaced(self.old) == _spaced(mutant.old)
            and _spaced(self.new) == _spaced(mutant.new)
        )


@cache
def known_equivalents() -> tuple[Equivalent, ...]:
    """Return all entries of the file."""
    rows = tomllib.loads(_FILE.read_text("utf-8"))["equivalent"]
    return tuple(Equivalent(**row) for row in rows)


def reason_of(mutant: DrawnMutant) -> str | None:
    """Return why no test can detect a mutant; None for a mutant that tests should detect."""
    return next((each.reason for each in known_equivalents() if each.matches(mutant)), None)


def _spaced(code: str) -> str:
    """Return code with single spaces; the tool changes the white space of what it replaces."""
    return "".join(code.split())
