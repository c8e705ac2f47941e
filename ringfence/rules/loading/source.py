"""A rule file as values that remember their lines, and what is found wrong in it.

Which syntax the values came from is `load`'s, which keys may stand where `ratelimit` and `build`
say. Nothing here raises: findings are gathered, so that one run names them all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from ringfence.errors import ConfigError
from ringfence.rules.periods import suggest

__all__ = [
    "Findings",
    "RuleFileError",
    "Item",
    "Kind",
    "Listing",
    "Problem",
    "Scalar",
    "Cursor",
    "Table",
    "in_order",
    "is_unicode",
]

_MOST_SHOWN = 50


class Kind(StrEnum):
    """What a lone value is taken for when nothing says otherwise."""

    TEXT = "text"
    WHOLE = "a whole number"
    FLOAT = "a number with a point"
    FLAG = "true or false"
    NULL = "nothing"
    OTHER = "a date"
    MERGE = "a merge key"
    """`<<`, where no map could take it in."""


_UNTOLD = (Kind.FLOAT, Kind.OTHER, Kind.MERGE)
"""What is refused where a text belongs, since it may not mean what is written."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A lone value, as it is written."""

    kind: Kind
    text: str
    line: int

    @property
    def flag(self) -> bool:
        """What a flag says."""
        return self.text.lower() in ("true", "yes", "on")

    @property
    def whole(self) -> int | None:
        """The whole number, if it is written in plain decimal and has at most 20 digits."""
        digits = self.text.replace("_", "").removeprefix("+")
        bare = digits.removeprefix("-")
        is_plain = bare.isdecimal() and len(bare) <= 20 and (bare[0] != "0" or bare == "0")
        return int(digits) if is_plain else None


@dataclass(frozen=True, slots=True)
class Listing:
    """A list."""

    items: "tuple[Item, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    """A map: pairs in file order, keys not yet checked."""

    pairs: "tuple[tuple[Item, Item], ...]"
    line: int


Item: TypeAlias = Scalar | Listing | Table


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or odd, in a rule file."""

    file: str
    line: int
    """From 1; 0 when the file as a whole is meant."""
    place: str
    """`domain > key=value > ...`; empty above all domains."""
    what: str
    mend: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f" {self.place}:" if self.place else ""
        return f"{self.file}{line}:{place} {self.what}; {self.mend}"


class RuleFileError(ConfigError):
    """Rule files were refused; nothing of them was taken. The message has a line per problem."""

    def __init__(self, problems: Collection[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:_MOST_SHOWN]]
        if len(self.problems) > _MOST_SHOWN:
            shown.append(f"... and {len(self.problems) - _MOST_SHOWN} more")
        super().__init__("\n".join(shown))


def is_unicode(text: str) -> bool:
    """Whether a text can be sent and printed: an escape may have put half a character into it."""
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)


def in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Sort by line within each file; files stay as they were first spoken of."""
    rank: dict[str, int] = {}
    for problem in problems:
        rank.setdefault(problem.file, len(rank))
    return tuple(sorted(problems, key=lambda problem: (rank[problem.file], problem.line)))


@dataclass(slots=True)
class Findings:
    """What one run of loading found, in the order found."""

    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where in a file we are reading; what is wrong there goes to `findings`."""

    findings: Findings
    file: str
    trail: tuple[str, ...] = ()

    def below(self, step: str) -> "Cursor":
        """Go one step down."""
        return Cursor(self.findings, self.file, (*self.trail, step))

    def error(self, line: int, what: str, mend: str) -> None:
        """Note what keeps the file from being used."""
        self.findings.errors.append(self._problem(line, what, mend))

    def warn(self, line: int, what: str, mend: str) -> None:
        """Note what is legal, yet perhaps not meant."""
        self.findings.warnings.append(self._problem(line, what, mend))

    def fields(
        self,
        table: Table,
        known: Collection[str],
        refused: Mapping[str, tuple[str, str]],
        *,
        keep_null: bool = False,
    ) -> dict[str, Item]:
        """Take the known keys of a map that say something; report unknown ones.

        `refused` says of some of these what is wrong, and the mend.
        """
        fields: dict[str, Item] = {}
        lines: dict[str, int] = {}
        for key, value in table.pairs:
            if not isinstance(key, Scalar) or key.kind is not Kind.TEXT:
                self._odd_key(key)
            elif key.text in lines:
                self.error(
                    key.line,
                    f"key {_cut(key.text)} stands twice, first in line {lines[key.text]}",
                    "keep one of them",
                )
            else:
                lines[key.text] = key.line
                if key.text in known:
                    if keep_null or not _is_null(value):
                        fields[key.text] = value
                elif key.text in refused:
                    self.error(key.line, *refused[key.text])
                else:
                    self.error(key.line, f"unknown key {_cut(key.text)}", suggest(key.text, known))
        return fields

    def table(self, item: Item, name: str) -> Table | None:
        """Take a map."""
        if isinstance(item, Table):
            return item
        self.error(item.line, f"{name} is {_kind(item)}, not a map", "write `key: value` pairs")
        return None

    def listing(self, fields: Mapping[str, Item], name: str) -> tuple[Item, ...]:
        """Take a list; empty when absent."""
        item = fields.get(name)
        if item is None:
            return ()
        if isinstance(item, Listing):
            return item.items
        self.error(item.line, f"{name} is {_kind(item)}, not a list", "begin each item with `-`")
        return ()

    def text(self, fields: Mapping[str, Item], name: str) -> str:
        """Take a text; empty when absent. Whole numbers and flags are taken as written."""
        item = fields.get(name)
        if item is None:
            return ""
        if not isinstance(item, Scalar):
            self.error(item.line, f"{name} is {_kind(item)}, not text", "write one value")
            return ""
        if item.kind in _UNTOLD:
            mend = f"quote it: {name}: '{item.text}'"
            self.error(item.line, f"{name} is {item.kind}, not text", mend)
            return ""
        return item.text

    def required(self, table: Table, fields: Mapping[str, Item], name: str, mend: str) -> str:
        """Take a text that must be there; empty when it is not, or wrong."""
        item = fields.get(name)
        if item is None or (isinstance(item, Scalar) and not item.text):
            self.error(table.line, f"{name} is missing or empty", mend)
        return self.text(fields, name)

    def flag(self, fields: Mapping[str, Item], name: str) -> bool:
        """Take true or false; false when absent."""
        item = fields.get(name)
        if item is None:
            return False
        if not isinstance(item, Scalar) or item.kind is not Kind.FLAG:
            self.error(item.line, f"{name} is {_kind(item)}", "write true or false")
            return False
        return item.flag

    def whole(self, fields: Mapping[str, Item], name: str, *, least: int, most: int) -> int | None:
        """Take a whole number in decimal; None when absent or wrong."""
        item = fields.get(name)
        if item is None:
            return None
        mend = f"write a whole number from {least} to {most}"
        if not isinstance(item, Scalar) or item.kind is not Kind.WHOLE:
            self.error(item.line, f"{name} is {_kind(item)}", mend)
            return None
        number = item.whole
        if number is None:
            self.error(item.line, f"{name} is {_cut(item.text)}", f"{mend}, in plain decimal")
            return None
        if not least <= number <= most:
            self.error(item.line, f"{name} is {number}", mend)
            return None
        return number

    def parsed(
        self, fields: Mapping[str, Item], name: str, parse: Callable[[str], int]
    ) -> int | None:
        """Take what `parse` makes of a lone value; None when absent or wrong."""
        item = fields.get(name)
        if item is None:
            return None
        if not isinstance(item, Scalar):
            self.error(item.line, f"{name} is {_kind(item)}", "write one value")
            return None
        try:
            return parse(item.text)
        except ConfigError as error:
            what, _, mend = str(error).rpartition("; ")
            self.error(item.line, f"{name}: {what}", mend)
            return None

    def choice(self, fields: Mapping[str, Item], name: str, known: Collection[str]) -> str:
        """Take one of a few words, in any case; empty when absent or wrong."""
        item = fields.get(name)
        if not isinstance(item, Scalar) or item.kind in _UNTOLD:
            return self.text(fields, name)
        if item.text.lower() in known:
            return item.text.lower()
        self.error(item.line, f"unknown {name} {_cut(item.text)}", suggest(item.text, known))
        return ""

    def _odd_key(self, key: Item) -> None:
        if isinstance(key, Scalar):
            what = f"key {_cut(key.text)} is {key.kind}, not text"
            self.error(key.line, what, f"quote it: '{key.text[:40]}'")
        else:
            self.error(key.line, f"a key is {_kind(key)}, not text", "write one word")

    def _problem(self, line: int, what: str, mend: str) -> Problem:
        return Problem(self.file, line, " > ".join(self.trail), what, mend)


def _is_null(item: Item) -> bool:
    return isinstance(item, Scalar) and item.kind is Kind.NULL


def _kind(item: Item) -> str:
    match item:
        case Scalar(kind=Kind.TEXT):
            return f"the text {_cut(item.text)}"
        case Scalar():
            return item.kind.value
        case Listing():
            return "a list"
        case Table():
            return "a map"


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
