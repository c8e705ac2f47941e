"""Problems in rule files, collected during a load, so that all of them are reported together."""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import astuple

from ringfence.errors import ConfigError

__all__ = ["Findings", "Problem", "RuleFileError", "in_order"]

_MAX_SHOWN = 50


class Problem(Struct, frozen=True):
    """One error or warning about a rule file."""

    file: str
    line: int
    """Line number from 1; 0 when the problem concerns the whole file."""
    place: str
    """`domain > key=value > ...`; empty above all domains."""
    what: str
    """Description of the problem."""
    fix: str
    """Instruction to correct the problem."""

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f" {self.place}:" if self.place else ""
        return f"{self.file}{line}:{place} {self.what}; {self.fix}"


class RuleFileError(ConfigError):
    """Error for rejected rule files. The message has one line per problem."""

    def __init__(self, problems: Collection[Problem | Sequence[Any]]) -> None:
        """A problem may also be the sequence of its fields, as in the `args` of this error."""
        super().__init__(
            [astuple(each) if isinstance(each, Problem) else tuple(each) for each in problems]
        )
        self.problems = tuple([Problem(*each) for each in self.args[0]])

    def __str__(self) -> str:
        shown = [str(problem) for problem in self.problems[:_MAX_SHOWN]]
        if len(self.problems) > _MAX_SHOWN:
            shown.append(f"... and {len(self.problems) - _MAX_SHOWN} more")
        return "\n".join(shown)


class Findings(Struct):
    """Errors and warnings of one load of rule files, in the order of their discovery."""

    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Sort problems by file and line. Those of one line keep their order."""
    return tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
