"""Values with `*` in them: what such a pattern matches, and when one pattern leaves nothing over.

Where a pattern stands and which of several wins is `ruleset`'s.
"""

from dataclasses import dataclass, field

__all__ = ["Glob", "is_pattern"]


def is_pattern(value: str) -> bool:
    """Whether a configured value stands for many."""
    return "*" in value


@dataclass(frozen=True, slots=True)
class Glob:
    """`*` is any number of characters, none included; all else is itself; both ends are anchored.

    Unlike a regular expression it never backs up: each middle piece is taken where it first occurs,
    so the time is bounded by pieces times text, whatever a caller sends.
    """

    pattern: str
    """At least one `*`."""
    _head: str = field(init=False, compare=False)
    _middle: tuple[str, ...] = field(init=False, compare=False)
    _tail: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        head, *middle, tail = self.pattern.split("*")
        object.__setattr__(self, "_head", head)
        object.__setattr__(self, "_middle", tuple(piece for piece in middle if piece))
        object.__setattr__(self, "_tail", tail)

    def matches(self, value: str) -> bool:
        """Whether the whole of `value` fits the pattern."""
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
        """Whether every value that `other` matches is matched by this pattern too.

        A character that stands in neither pattern can only be taken by a `*` of ours, so putting
        it for each `*` of the other asks about all its values at once.
        """
        if not (other._head.startswith(self._head) and other._tail.endswith(self._tail)):
            return False
        used = set(self.pattern) | set(other.pattern)
        stranger = next(chr(code) for code in range(len(used) + 1) if chr(code) not in used)
        return self.matches(other.pattern.replace("*", stranger))
