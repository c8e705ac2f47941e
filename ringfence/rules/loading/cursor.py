"""Cursor over the values of a rule file, which reads typed fields and reports problems.

Methods do not raise. They add problems to the findings, so that one run reports all of them.
Which keys a map may have is decided by the callers.
"""

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.rules.loading.problems import Findings, Problem
from ringfence.rules.loading.values import Item, Kind, Listing, Scalar, Table
from ringfence.rules.periods import suggest

__all__ = ["Cursor"]

_NOT_TEXT = (Kind.FLOAT, Kind.OTHER, Kind.MERGE)
"""Kinds that are rejected where text is expected, since YAML may read them differently."""


class Cursor(Struct, frozen=True):
    """Position in a rule file, and the findings to which problems are added."""

    findings: Findings
    file: str
    trail: tuple[str, ...] = ()

    def below(self, step: str) -> "Cursor":
        """Return the cursor of a child of the map or list at this position."""
        return Cursor(self.findings, self.file, (*self.trail, step))

    def error(self, line: int, what: str, fix: str) -> None:
        """Add an error at this position of a rule file: the file cannot be used."""
        self.findings.errors.append(self._problem(line, what, fix))

    def warn(self, line: int, what: str, fix: str) -> None:
        """Add a warning at this position of a rule file: legal, but probably a mistake."""
        self.findings.warnings.append(self._problem(line, what, fix))

    def fields(
        self,
        table: Table,
        known: Collection[str],
        refused: Mapping[str, tuple[str, str]],
        *,
        keep_null: bool = False,
    ) -> dict[str, Item]:
        """Return the fields of a map with known keys; report unknown and repeated keys.

        `refused` maps each forbidden key to the problem and the fix. Fields without a
        value are left out with a warning unless `keep_null` is set.
        """
        fields: dict[str, Item] = {}
        lines: dict[str, int] = {}
        for key, value in table.pairs:
            if not isinstance(key, Scalar) or key.kind is not Kind.TEXT:
                self._report_key(key)
            elif key.text in lines:
                self.error(
                    key.line,
                    f"key {_cut(key.text)} is given twice, first in line {lines[key.text]}",
                    "keep one of them",
                )
            else:
                lines[key.text] = key.line
                if key.text in known:
                    if keep_null or not _is_null(value):
                        fields[key.text] = value
                    else:
                        fix = "write its value, or remove it"
                        self.warn(key.line, f"{key.text} is empty, as if it were absent", fix)
                elif key.text in refused:
                    self.error(key.line, *refused[key.text])
                else:
                    self.error(key.line, f"unknown key {_cut(key.text)}", suggest(key.text, known))
        return fields

    def table(self, item: Item, name: str) -> Table | None:
        """Return the value of the key `name` as a map; for any other value, report an error and
        return None."""
        if isinstance(item, Table):
            return item
        self.error(
            item.line, f"{name} must be a map, got {_kind(item)}", "write `key: value` pairs"
        )
        return None

    def listing(self, fields: Mapping[str, Item], name: str) -> tuple[Item, ...]:
        """Return the items of the field `name`, a list; empty when it is absent."""
        item = fields.get(name)
        if item is None:
            return ()
        if isinstance(item, Listing):
            return item.items
        self.error(
            item.line, f"{name} must be a list, got {_kind(item)}", "begin each item with `-`"
        )
        return ()

    def text(self, fields: Mapping[str, Item], name: str) -> str:
        """Return the text of the field `name`; empty when absent. Whole numbers and flags count as
        text, as written."""
        item = fields.get(name)
        if item is None:
            return ""
        if not isinstance(item, Scalar):
            self.error(item.line, f"{name} must be text, got {_kind(item)}", "write one value")
            return ""
        if item.kind in _NOT_TEXT:
            fix = f"quote it: {name}: '{item.text}'"
            self.error(item.line, f"{name} must be text, got {item.kind}", fix)
            return ""
        return item.text

    def required(self, table: Table, fields: Mapping[str, Item], name: str, fix: str) -> str:
        """Return the text of the field `name`; empty when it is missing or wrong, which is reported
        as an error."""
        item = fields.get(name)
        if item is None or (isinstance(item, Scalar) and not item.text):
            self.error(table.line, f"{name} is missing or empty", fix)
        return self.text(fields, name)

    def flag(self, fields: Mapping[str, Item], name: str) -> bool:
        """Return the field `name` as a boolean; False when it is absent."""
        item = fields.get(name)
        if item is None:
            return False
        if not isinstance(item, Scalar) or item.kind is not Kind.FLAG:
            self.error(item.line, f"{name} is {_kind(item)}", "write true or false")
            return False
        return item.flag

    def whole(self, fields: Mapping[str, Item], name: str, *, least: int, most: int) -> int | None:
        """Return the field `name` as a decimal whole number; None when it is absent or wrong."""
        item = fields.get(name)
        if item is None:
            return None
        fix = f"write a whole number from {least} to {most}"
        if not isinstance(item, Scalar) or item.kind is not Kind.WHOLE:
            self.error(item.line, f"{name} is {_kind(item)}", fix)
            return None
        number = item.whole
        if number is None:
            self.error(item.line, f"{name} is {_cut(item.text)}", f"{fix}, in plain decimal")
            return None
        if not least <= number <= most:
            self.error(item.line, f"{name} is {number}", fix)
            return None
        return number

    def parsed(
        self, fields: Mapping[str, Item], name: str, parse: Callable[[str], int]
    ) -> int | None:
        """Return the result of the function `parse` for the field `name`; None when it is absent or
        wrong."""
        item = fields.get(name)
        if item is None:
            return None
        if not isinstance(item, Scalar):
            self.error(item.line, f"{name} is {_kind(item)}", "write one value")
            return None
        try:
            return parse(item.text)
        except ConfigError as error:
            what, _, fix = str(error).rpartition("; ")
            self.error(item.line, f"{name}: {what}", fix)
            return None

    def choice(self, fields: Mapping[str, Item], name: str, known: Collection[str]) -> str:
        """Return the field `name` if it is one of the words in `known`, in any case; empty
        otherwise."""
        item = fields.get(name)
        if not isinstance(item, Scalar) or item.kind in _NOT_TEXT:
            return self.text(fields, name)
        if item.text.lower() in known:
            return item.text.lower()
        self.error(item.line, f"unknown {name} {_cut(item.text)}", suggest(item.text, known))
        return ""

    def _report_key(self, key: Item) -> None:
        if isinstance(key, Scalar):
            what = f"key {_cut(key.text)} must be text, got {key.kind}"
            self.error(key.line, what, f"quote it: '{key.text[:40]}'")
        else:
            self.error(key.line, f"a key must be text, got {_kind(key)}", "write one word")

    def _problem(self, line: int, what: str, fix: str) -> Problem:
        return Problem(self.file, line, " > ".join(self.trail), what, fix)


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
