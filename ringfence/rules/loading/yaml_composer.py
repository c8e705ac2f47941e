"""Conversion of YAML text to values with line numbers; depth and number of values are bounded.

PyYAML composes the nodes, which have line numbers. The bounds limit the cost of nesting and
repeated aliases, so that no file exhausts the stack or the memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor

from ringfence.rules.loading.values import (
    MAX_DEPTH,
    Item,
    Kind,
    Listing,
    Scalar,
    Table,
    is_unicode,
)

__all__ = ["MAX_VALUES", "InvalidYaml", "compose", "parse_plain"]

MAX_VALUES = 500_000
"""Maximum number of values in one file; repeated aliases count each time."""

_TAG = "tag:yaml.org,2002:"
_KINDS = {
    f"{_TAG}str": Kind.TEXT,
    f"{_TAG}value": Kind.TEXT,
    f"{_TAG}int": Kind.WHOLE,
    f"{_TAG}float": Kind.FLOAT,
    f"{_TAG}bool": Kind.FLAG,
    f"{_TAG}null": Kind.NULL,
    f"{_TAG}timestamp": Kind.OTHER,
    f"{_TAG}merge": Kind.MERGE,
}
_TOO_DEEP = "exceeded maximum nesting depth"
"""Error of libyaml since PyYAML 6.0.4. Its own limit is higher than `MAX_DEPTH`, but it reads ahead
of the composer."""
_UNQUOTED = "*&!@`%"
"""Characters with which a plain text cannot begin."""
_SCANNING_NAMES = ("while scanning an alias", "while scanning an anchor")
"""Contexts of errors after a `*` or `&`."""
_PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class InvalidYaml(Exception):
    """Error for text that is not YAML, or that exceeds the bounds; `line` is 0 for the whole
    text."""

    def __init__(self, line: int, what: str, fix: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what
        self.fix = fix


def compose(text: str) -> Item:
    """Parse YAML text that contains one document. Raises `InvalidYaml`."""
    root = _root(text)
    item = None if root is None else _Converter().convert(root, 0).item
    if item is None or (isinstance(item, Scalar) and item.kind is Kind.NULL):
        raise InvalidYaml(0, "the file is empty", "write `domain:` and `descriptors:`")
    return item


def parse_plain(text: str) -> object:
    """Parse YAML text that contains one document to lists, dictionaries and plain values.

    The result is None for a text without a document. Raises `InvalidYaml`.
    """
    root = _root(text)
    if root is None:
        return None
    _Converter().convert(root, 0)  # Checks the number of values and the types.
    with _syntax_errors(text):
        return _Constructor().construct_document(root)


class _Constructor(SafeConstructor):
    """PyYAML's constructor of plain values, which also names the line of an unreadable value."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Convert one node."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            what = f"a number or date is not readable: {error}"
            raise InvalidYaml(node.start_mark.line + 1, what, "write a text in quotes") from error


def _root(text: str) -> yaml.Node | None:
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise InvalidYaml(line, f"control character U+{ord(found[0]):04X}", "remove it")
    composer = _BoundedComposer(text)
    with _syntax_errors(text):
        root = composer.get_node() if composer.check_node() else None
        if composer.check_node():
            second: Any = composer.peek_event()
            fix = "write each document to a separate file"
            raise InvalidYaml(second.start_mark.line + 1, "a second document begins", fix)
    return root


@contextmanager
def _syntax_errors(text: str) -> Iterator[None]:
    """Translate errors of PyYAML in a text."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        if error.problem == _TOO_DEEP:
            raise _nested_too_deep(line) from error
        what = f"not YAML: {error.problem or error.context or 'syntax error'}"
        raise InvalidYaml(line, what, _remedy(error, text)) from error


def _remedy(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return how to fix a syntax error, by the character at its place."""
    mark = error.context_mark if error.context in _SCANNING_NAMES else error.problem_mark
    found = "" if mark is None else text[mark.index : mark.index + 1]
    if found == "\t":
        return "indent by spaces instead of the tab"
    if found and found in _UNQUOTED:
        return f"quote values that begin with {found}"
    return "check indentation (spaces only), colons and quotes"


class _BoundedComposer(Composer):
    """PyYAML's composer with a limit on nesting; an anchor may be defined several times."""

    def __init__(self, text: str) -> None:
        super().__init__()
        parser = _PARSER(text)
        self.check_event = parser.check_event
        self.peek_event = parser.peek_event
        self.get_event = parser.get_event
        self.resolve = parser.resolve
        self.descend_resolver = parser.descend_resolver
        self.ascend_resolver = parser.ascend_resolver
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node; `Composer` calls this for each child."""
        event: Any = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            target = self.anchors.get(event.anchor)
            if target is None or target.end_mark is None:
                what = f"alias *{event.anchor} must refer to a complete value above it"
                raise InvalidYaml(line, what, f"define &{event.anchor}")
        else:
            self.anchors.pop(event.anchor, None)
        _check_depth(self._depth, line)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Converted(NamedTuple):
    item: Item
    size: int
    """Number of values, with aliases expanded."""
    height: int
    """Number of levels of maps and lists, with aliases expanded."""


class _Converter:
    """Converter of YAML nodes to values. Targets of aliases are shared, but each use counts
    toward the maximum number of values."""

    def __init__(self) -> None:
        self._done: dict[int, _Converted] = {}
        """Results by identity of the node; the caller keeps all nodes alive."""

    def convert(self, node: yaml.Node, depth: int) -> _Converted:
        """Convert a YAML node that is inside `depth` maps and lists."""
        line = node.start_mark.line + 1
        done = self._done.get(id(node))
        if done is None:
            parts = [self.convert(each, depth + 1) for each in _children(node)]
            item = _item(node, [part.item for part in parts], line)
            height = max([1 + part.height for part in parts], default=0)
            done = _Converted(item, 1 + sum([part.size for part in parts]), height)
            self._done[id(node)] = done
        if done.size > MAX_VALUES:
            raise InvalidYaml(line, f"more than {MAX_VALUES} values", "split the file")
        _check_depth(depth + done.height, line)
        return done


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _item(node: yaml.Node, parts: list[Item], line: int) -> Item:
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, line)
    if isinstance(node, yaml.SequenceNode):
        _check_tag(node.tag, line, f"{_TAG}seq")
        return Listing(tuple(parts), line)
    _check_tag(node.tag, line, f"{_TAG}map")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return Table(tuple(_merged(list(pairs))), line)


def _check_depth(depth: int, line: int) -> None:
    if depth > MAX_DEPTH:
        raise _nested_too_deep(line)


def _nested_too_deep(line: int) -> InvalidYaml:
    return InvalidYaml(line, f"nested more than {MAX_DEPTH} deep", "flatten it")


def _scalar(node: yaml.ScalarNode, line: int) -> Scalar:
    kind = _KINDS.get(node.tag)
    if kind is None:
        _check_tag(node.tag, line, "")
    if not is_unicode(node.value):
        raise InvalidYaml(line, "an escape is half of a surrogate pair", "write both halves")
    return Scalar(kind or Kind.TEXT, node.value, line)


def _check_tag(tag: str, line: int, expected: str) -> None:
    if tag != expected:
        raise InvalidYaml(line, f"tag {tag[:60]} is not supported", "drop the tag")


def _merged(pairs: Sequence[tuple[Item, Item]]) -> Iterator[tuple[Item, Item]]:
    """Resolve merge keys (`<<: *base`): the map's own keys win, then the first map that has a
    key."""
    bases: list[Table] = []
    own: set[str] = set()
    for key, value in pairs:
        if isinstance(key, Scalar) and key.kind is Kind.MERGE:
            for base in value.items if isinstance(value, Listing) else (value,):
                if not isinstance(base, Table):
                    fix = "write `<<: *NAME` with the anchor of a map"
                    raise InvalidYaml(key.line, "`<<` must be given a map", fix)
                bases.append(base)
            continue
        if isinstance(key, Scalar):
            own.add(key.text)
        yield key, value
    for base in bases:
        for key, value in base.pairs:
            if not isinstance(key, Scalar):
                yield key, value
            elif key.text not in own:
                own.add(key.text)
                yield key, value
