"""Rule files in YAML, read into a `RuleSet`. For nodes and tools: no other module imports YAML.

A load either yields all rules or raises with everything that is wrong; nothing is changed
in place, so a bad file never replaces good rules unless its caller lets it. What the keys mean is
`build`'s; here are files, bytes and syntax, all of them bounded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from ringfence.rules.loading.build import Loaded, SourceFile, finish
from ringfence.rules.loading.mapping import load_mapping
from ringfence.rules.loading.rate_limit import Defaults
from ringfence.rules.loading.source import (
    Findings,
    Item,
    Kind,
    Listing,
    Problem,
    RuleFileError,
    Scalar,
    Table,
    is_unicode,
)
from ringfence.rules.ruleset import RuleSet

__all__ = [
    "MAX_DEPTH",
    "MAX_FILE_BYTES",
    "MAX_VALUES",
    "Defaults",
    "Loaded",
    "Problem",
    "RuleFileError",
    "load_files",
    "load_mapping",
    "load_path",
    "load_text",
]

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 100
"""Most maps and lists inside each other; a descriptor below another takes two."""
MAX_VALUES = 500_000
"""Most values of one file, those that aliases repeat counted each time."""

_SUFFIXES = (".yaml", ".yml")
_MERGE_TAG = "tag:yaml.org,2002:merge"
_KINDS = {
    "tag:yaml.org,2002:str": Kind.TEXT,
    "tag:yaml.org,2002:value": Kind.TEXT,
    "tag:yaml.org,2002:int": Kind.WHOLE,
    "tag:yaml.org,2002:float": Kind.FLOAT,
    "tag:yaml.org,2002:bool": Kind.FLAG,
    "tag:yaml.org,2002:null": Kind.NULL,
    "tag:yaml.org,2002:timestamp": Kind.OTHER,
    _MERGE_TAG: Kind.MERGE,
}
_PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def load_text(text: str, filename: str = "rules", *, defaults: Defaults | None = None) -> Loaded:
    """Read one file that is already in memory; the version is 0.

    Raises `RuleFileError`, a `ConfigError` that lists all problems.
    """
    findings = Findings()
    files = _parse([(filename, text)], findings)
    return finish(files, findings, defaults, merge=False, version=0)


def load_files(
    paths: Sequence[Path], *, defaults: Defaults | None = None, merge: bool = False
) -> Loaded:
    """Read rule files in the order given.

    The version is the time of the youngest change, in ms. `merge` lets several files speak of one
    domain. Raises `RuleFileError`, a `ConfigError` that lists all problems of all files.
    """
    findings = Findings()
    version = _youngest(paths)  # Before reading: a change in between makes the next load younger.
    texts = [(str(path), text) for path in paths if (text := _read(path, findings)) is not None]
    return finish(_parse(texts, findings), findings, defaults, merge=merge, version=version)


def load_path(path: Path, *, defaults: Defaults | None = None, merge: bool = False) -> Loaded:
    """Read one file, or every `*.yaml` and `*.yml` of a directory, sorted, dot-files left out.

    Otherwise as `load_files`; the directory's own time counts for the version too, so that a
    removed file makes it younger. Raises `RuleFileError`.
    """
    if not path.is_dir():
        return load_files([path], defaults=defaults, merge=merge)
    before = _youngest([path])
    try:
        paths = sorted(
            each
            for each in path.iterdir()
            if each.suffix in _SUFFIXES and not each.name.startswith(".") and each.is_file()
        )
    except OSError as error:
        raise RuleFileError([_unreadable(path, error)]) from error
    if not paths:
        what = "no rule file in this directory"
        raise RuleFileError([Problem(str(path), 0, "", what, "put a *.yaml file into it")])
    loaded = load_files(paths, defaults=defaults, merge=merge)
    rules = RuleSet(loaded.rules.contents, version=max(before, loaded.rules.version))
    return replace(loaded, rules=rules)


def _youngest(paths: Sequence[Path]) -> int:
    """Find the last change of these files, in ms since the epoch; missing ones do not count."""
    times = [0]
    for path in paths:
        try:
            times.append(path.stat().st_mtime_ns // 1_000_000)
        except OSError:
            continue  # Reading it will say so.
    return max(times)


def _read(path: Path, findings: Findings) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        findings.errors.append(_unreadable(path, error))
        return None
    try:
        if len(content) <= MAX_FILE_BYTES:
            return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte {content[error.start]:#04x} is not UTF-8"
        findings.errors.append(Problem(str(path), line, "", what, "save the file as UTF-8"))
        return None
    what = f"the file is larger than {MAX_FILE_BYTES // 2**20} MiB"
    findings.errors.append(Problem(str(path), 0, "", what, "split it"))
    return None


def _unreadable(path: Path, error: OSError) -> Problem:
    reason = (error.strerror or str(error)).lower()
    return Problem(str(path), 0, "", f"cannot be read: {reason}", "check the path and its rights")


def _parse(texts: Sequence[tuple[str, str]], findings: Findings) -> list[SourceFile]:
    files: list[SourceFile] = []
    for name, text in texts:
        try:
            files.append(SourceFile(name, _Composer().compose(text)))
        except _BadSyntax as bad:
            findings.errors.append(Problem(name, bad.line, "", bad.what, bad.mend))
    return files


class _BadSyntax(Exception):
    def __init__(self, line: int, what: str, mend: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what
        self.mend = mend


@dataclass(frozen=True, slots=True)
class _Built:
    """A finished value, with its size and depth when every alias is written out."""

    item: Item
    size: int = 1
    depth: int = 0


@dataclass(slots=True)
class _Open:
    """A list or map that is not yet closed."""

    line: int
    anchor: str | None
    is_map: bool
    parts: list[_Built] = field(default_factory=list)


class _Composer:
    """Builds values from parser events without recursion, so that no input exhausts the stack."""

    def __init__(self) -> None:
        self._resolver = yaml.resolver.Resolver()
        self._anchors: dict[str, _Built] = {}
        self._open: list[_Open] = []
        self._root: _Built | None = None
        self._documents = 0

    def compose(self, text: str) -> Item:
        """Read the one document of `text`. Raises `_BadSyntax`."""
        odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
        if odd is not None:
            line = text.count("\n", 0, odd.start()) + 1
            raise _BadSyntax(line, f"control character U+{ord(odd[0]):04X}", "remove it")
        try:
            for event in yaml.parse(text, Loader=_PARSER):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark is not None else 0
            what = f"not YAML: {error.problem or error.context or 'syntax error'}"
            raise _BadSyntax(
                line, what, "check indentation (spaces only), colons and quotes"
            ) from error
        if self._root is None or (
            isinstance(self._root.item, Scalar) and self._root.item.kind is Kind.NULL
        ):
            raise _BadSyntax(0, "the file is empty", "write `domain:` and `descriptors:`")
        return self._root.item

    def _take(self, event: yaml.Event) -> None:
        line = 0 if event.start_mark is None else event.start_mark.line + 1
        match event:
            case yaml.ScalarEvent():  # Most events, so tried first.
                self._put(_Built(self._scalar(event, line)), event.anchor, line)
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    mend = "put each domain into a file of its own"
                    raise _BadSyntax(line, "a second document begins", mend)
            case yaml.AliasEvent():
                self._put(self._alias(event.anchor or "", line), None, line)
            case yaml.CollectionStartEvent():
                is_map = isinstance(event, yaml.MappingStartEvent)
                _check_tag(event.tag, line, "map" if is_map else "seq")
                self._open.append(_Open(line, event.anchor, is_map))
                self._check(line, len(self._open), 0)
            case yaml.CollectionEndEvent():
                closed = self._open.pop()
                self._put(_close(closed), closed.anchor, closed.line)
            case _:
                pass

    def _put(self, built: _Built, anchor: str | None, line: int) -> None:
        self._check(line, len(self._open) + built.depth, built.size)
        if anchor is not None:
            self._anchors[anchor] = built
        if self._open:
            self._open[-1].parts.append(built)
        else:
            self._root = built

    def _check(self, line: int, depth: int, size: int) -> None:
        if depth > MAX_DEPTH:
            raise _BadSyntax(line, f"nested more than {MAX_DEPTH} deep", "flatten it")
        if size > MAX_VALUES:
            raise _BadSyntax(line, f"more than {MAX_VALUES} values", "split the file")

    def _alias(self, name: str, line: int) -> _Built:
        built = self._anchors.get(name)
        if built is None:
            raise _BadSyntax(line, f"alias *{name} has no finished anchor above", f"define &{name}")
        return built

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Scalar:
        tag = event.tag
        if tag is None or tag == "!":
            node = yaml.ScalarNode
            tag = self._resolver.resolve(node, event.value, event.implicit)  # type: ignore[no-untyped-call]
        kind = _KINDS.get(tag)
        if kind is None:
            raise _BadSyntax(line, f"tag {tag[:60]} means nothing here", "drop the tag")
        if not is_unicode(event.value):
            raise _BadSyntax(line, "an escape that is half a character", "write the whole one")
        return Scalar(kind, event.value, line)


def _check_tag(tag: str | None, line: int, expected: str) -> None:
    if tag not in (None, "!", f"tag:yaml.org,2002:{expected}"):
        raise _BadSyntax(line, f"tag {tag[:60]} means nothing here", "drop the tag")


def _close(closed: _Open) -> _Built:
    size = 1 + sum(part.size for part in closed.parts)
    depth = 1 + max((part.depth for part in closed.parts), default=0)
    items = tuple(part.item for part in closed.parts)
    if not closed.is_map:
        return _Built(Listing(items, closed.line), size, depth)
    pairs = tuple(zip(items[::2], items[1::2], strict=True))
    if any([type(key) is Scalar and key.kind is Kind.MERGE for key in items[::2]]):
        pairs = tuple(_merged(pairs))
    return _Built(Table(pairs, closed.line), size, depth)


def _merged(pairs: Sequence[tuple[Item, Item]]) -> Iterator[tuple[Item, Item]]:
    """Resolve `<<: *base`: the map's own keys win, then the first map that has a key."""
    bases: list[Table] = []
    own: set[str] = set()
    for key, value in pairs:
        if not isinstance(key, Scalar) or key.kind is not Kind.MERGE:
            if isinstance(key, Scalar):
                own.add(key.text)
            yield key, value
            continue
        for base in value.items if isinstance(value, Listing) else (value,):
            if not isinstance(base, Table):
                mend = "write `<<: *NAME` with the anchor of a map"
                raise _BadSyntax(key.line, "`<<` takes in something that is no map", mend)
            bases.append(base)
    for base in bases:
        for key, value in base.pairs:
            if not isinstance(key, Scalar):
                yield key, value
            elif key.text not in own:
                own.add(key.text)
                yield key, value
