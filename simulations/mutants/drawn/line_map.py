"""Map from each line of the packages to the tests that run it, with the time of each test."""

import ast
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from types import CodeType

from msgspec import Struct, field

from simulations.mutants.drawn.sample import ROOT, DrawnMutant

__all__ = ["LineMap"]

Lines = dict[int, list[str]]


class LineMap(Struct):
    """Recorded lines of each test; old records remain valid for lines that did not change."""

    root: Path = ROOT
    seconds: dict[str, float] = field(default_factory=dict)
    """Processor time of each passed test, by its node id."""
    _lines: dict[str, Lines] = field(default_factory=dict)
    _sources: dict[str, str] = field(default_factory=dict)
    """Source text at the time of the record, by path."""

    @classmethod
    def load(cls, file: Path, root: Path = ROOT) -> "LineMap":
        """Read a map, and convert its line numbers to those of the current code.

        Returns an empty map when the file does not exist.
        """
        found = cls(root)
        if file.is_file():
            stored = json.loads(gzip.decompress(file.read_bytes()))
            names = stored["tests"]
            found.seconds = dict(zip(names, stored["seconds"], strict=True))
            for path, source in stored["sources"].items():
                lines = {
                    int(line): [names[number] for number in tests]
                    for line, tests in stored["lines"][path].items()
                }
                found._put(path, source, lines)
        return found

    def save(self, file: Path) -> None:
        """Write the map."""
        names = list(self.seconds)
        numbers = {name: number for number, name in enumerate(names)}
        stored = {
            "tests": names,
            "seconds": list(self.seconds.values()),
            "sources": self._sources,
            "lines": {
                path: {
                    line: [numbers[test] for test in tests if test in numbers]
                    for line, tests in lines.items()
                }
                for path, lines in self._lines.items()
            },
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(json.dumps(stored).encode(), 6))

    def add(
        self,
        seconds: Mapping[str, float],
        lines: Mapping[str, Mapping[str, list[str]]],
        files: Iterable[str],
    ) -> None:
        """Add new records of some test files, and forget their old ones."""
        renewed = set(files)
        for name in [each for each in self.seconds if each.partition("::")[0] in renewed]:
            del self.seconds[name]
        self.seconds |= seconds
        for path, recorded in lines.items():
            old = self._lines.get(path, {})
            merged = {
                line: [test for test in tests if test in self.seconds and test not in seconds]
                for line, tests in old.items()
            }
            for line, tests in recorded.items():
                merged.setdefault(int(line), []).extend(test for test in tests if test in seconds)
            self._lines[path] = merged
            self._sources[path] = self._current(path)

    def tests_for(self, mutant: DrawnMutant, *, is_exact: bool = False) -> list[str]:
        """Return the tests that a mutant can affect, the fastest first.

        These run the mutated line. If none does, they run its function, or lines with the name of
        the constant or field that the mutant changes. `is_exact` is for tests that run equal lines
        each time: if none of them runs the line, the result is empty.
        """
        line = mutant.start[0]
        tree = ast.parse(self._current(mutant.path))
        inner = _innermost_function(tree, line)
        if inner is not None and line > inner.lineno:
            found = self._tests_of(mutant.path, [line])
            if found or (is_exact and line in _lines_with_code(self._current(mutant.path))):
                return found
        if inner is not None:
            return self._tests_of(mutant.path, range(inner.lineno, (inner.end_lineno or 0) + 1))
        names = _names_defined_at(tree, line)
        places = [(path, number) for path, number in self._mentions(names)]
        found = self._sorted({t for path, number in places for t in self._tests_at(path, number)})
        if found:
            return found
        return self._tests_of(mutant.path, list(self._lines.get(mutant.path, {})))

    def _put(self, path: str, source: str, lines: Lines) -> None:
        current = self._current(path)
        if current == source:
            moved = lines
        else:
            moved = {}
            matcher = SequenceMatcher(
                None, source.splitlines(), current.splitlines(), autojunk=False
            )
            for old, new, size in matcher.get_matching_blocks():
                for offset in range(1, size + 1):
                    if old + offset in lines:
                        moved[new + offset] = lines[old + offset]
        self._lines[path] = moved
        self._sources[path] = current

    def _current(self, path: str) -> str:
        file = self.root / path
        return file.read_text("utf-8") if file.is_file() else ""

    def _tests_at(self, path: str, line: int) -> list[str]:
        return self._lines.get(path, {}).get(line, [])

    def _tests_of(self, path: str, lines: Iterable[int]) -> list[str]:
        return self._sorted({test for line in lines for test in self._tests_at(path, line)})

    def _sorted(self, tests: Iterable[str]) -> list[str]:
        known = [test for test in tests if test in self.seconds]
        return sorted(known, key=lambda test: (self.seconds[test], test))

    def _mentions(self, names: set[str]) -> Iterator[tuple[str, int]]:
        """Yield the lines in functions that mention a name."""
        if not names:
            return
        pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
        for path in self._lines:
            for number, text in enumerate(self._current(path).splitlines(), 1):
                if pattern.search(text):
                    yield path, number


def _lines_with_code(source: str) -> set[int]:
    found: set[int] = set()
    waiting = [compile(source, "", "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        found.update(line for _, _, line in code.co_lines() if line is not None)
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def _innermost_function(
    tree: ast.Module, line: int
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    found = None
    for node in ast.walk(tree):  # Outer nodes come first.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= line <= (node.end_lineno or 0):
                found = node
    return found


def _names_defined_at(tree: ast.Module, line: int) -> set[str]:
    """Return the constants, fields and classes that a statement outside of functions defines."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        match node:
            case ast.Assign(targets=targets) if first <= line <= last:
                names = {each.id for each in targets if isinstance(each, ast.Name)}
                found[last - first] |= names
            case ast.AnnAssign(target=ast.Name(id=name)) if first <= line <= last:
                found[last - first].add(name)
            case ast.ClassDef(name=name, decorator_list=decorators, body=[inner, *_]):
                first = min([first, *(each.lineno for each in decorators)])
                if first <= line < inner.lineno:  # Its decorators, bases and keywords.
                    found[0].add(name)
            case _:
                pass
    return found[min(found)] if found else set()
