"""Patterns with `*`: which values they match, and when one pattern covers another.

`ruleset` decides which of several matching patterns is used.
"""

from dataclasses import dataclass, field

__all__ = ["Glob", "is_pattern"]


def is_pattern(value: str) -> bool:
    """Whether a value in a rule file is a pattern with `*`."""
    return "*" in value


@dataclass(frozen=True, slots=True)
class Glob:
    """Pattern in which `*` matches any number of characters, including none; it matches whole
    values.

    Matching does not backtrack: each middle piece is matched at its first occurrence. The time is
    bounded by the number of pieces times the length of the text.
    """

    pattern: str
    """Text of the pattern, with at least one `*`."""
    _head: str = field(init=False, compare=False)
    _middle: tuple[str, ...] = field(init=False, compare=False)
    _tail: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        head, *middle, tail = self.pattern.split("*")
        object.__setattr__(self, "_head", head)
        object.__setattr__(self, "_middle", tuple(piece for piece in middle if piece))
        object.__setattr__(self, "_tail", tail)

    def matches(self, value: str) -> bool:
        """Whether the pattern matches the whole of `value`."""
        if not value.startswith(self._head):
            return False
        at, end = len(self._head), len(value) - len(self._tail)
        if at > end or not value.endswith(self._tail):
            return False
        for piece in self._middle:
            at = value.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    def covers(self, other: "Glob") -> bool:
        """Whether this pattern matches every value that `other` matches.

        Replaces each `*` of `other` by a character that neither pattern contains. Only a `*` of
        this pattern can match it, so one match answers for all values.
        """
        if not (other._head.startswith(self._head) and other._tail.endswith(self._tail)):
            return False
        used = set(self.pattern) | set(other.pattern)
        unused = next(chr(code) for code in range(len(used) + 1) if chr(code) not in used)
        return self.matches(other.pattern.replace("*", unused))
