"""Mutants: planted bugs, each made by changing a few tokens in the source of a function.

No file changes: the changed function replaces the real one in this process while a block runs.
Quoted code survives refactoring: it is compared by tokens, identifiers may have been renamed
consistently, and the function may have moved to another module.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from types import FunctionType, ModuleType

from msgspec import Struct

__all__ = ["Edit", "Mutant", "MutantGone", "applied"]

_OURS = ("hashring", "gossip", "ringfence", "node", "simulations")
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*|,(?=\s*[)\]}]))
    |[a-zA-Z]{0,2}(?:\"\"\"[\s\S]*?\"\"\"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<name>[^\W\d]\w*)
    |[\d.]\w*|.""",
    re.VERBOSE,
)
"""Tokens of Python code: space with comments and trailing commas, strings, names, the rest."""


class MutantGone(LookupError):
    """Error when the code that a mutant changes no longer exists."""


class Edit(Struct, frozen=True):
    """Replacement of some code in one function, by quoted source text."""

    target: str
    """Module and qualified name of the function, such as `node.serve:serve`."""
    old: str
    """Code that occurs once in the function, apart from white space and consistent renames."""
    new: str
    """Code that takes its place; identifiers are renamed as in `old`."""


class Mutant(Struct, frozen=True):
    """Planted bug: its name, its edits and the scenarios that should detect it."""

    name: str
    about: str
    """One sentence: the effect of the bug."""
    edits: tuple[Edit, ...]
    testbeds: tuple[str, ...]
    """Names of the scenarios that may notice it, the likeliest first."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Put a mutant's bug into the running code for the block, and remove it afterwards.

    Raises `MutantGone` when the code to change no longer exists.
    """
    with ExitStack() as stack:
        for edit in mutant.edits:
            stack.enter_context(_edited(mutant.name, edit))
        yield


@contextmanager
def _edited(name: str, edit: Edit) -> Iterator[None]:
    owner, attribute, original = _find(name, edit)
    changed = _compiled(name, edit, owner, attribute, original)
    places = _places(owner, attribute, original)
    for place in places:
        setattr(place, attribute, changed)
    try:
        yield
    finally:
        for place in places:
            setattr(place, attribute, original)


def _find(name: str, edit: Edit) -> tuple[object, str, object]:
    """Return the function that a mutant changes, with its name and its module or class.

    A function that has left its module is taken from the only other module that has it.
    """
    module_name, _, path = edit.target.partition(":")
    found = _target_in(module_name, path)
    if found is None:
        elsewhere = [_target_in(module, path) for module in _modules_with(path.split(".")[-1])]
        unique = [each for each in elsewhere if each is not None]
        found = unique[0] if len(unique) == 1 else None
    if found is None:
        raise MutantGone(
            f"mutant {name}: {edit.target} does not exist; find the code and change the mutant's "
            "edit in simulations/mutants"
        )
    return found


def _target_in(module_name: str, path: str) -> tuple[object, str, object] | None:
    *outer, attribute = path.split(".")
    try:
        owner: object = import_module(module_name)
    except ImportError:
        return None
    for part in outer:
        owner = getattr(owner, part, None)
    found = getattr(owner, "__dict__", {}).get(attribute)
    return None if found is None else (owner, attribute, found)


def _modules_with(function: str) -> list[str]:
    """Return the names of the shipped modules that define a function with the given name."""
    root = Path(__file__).parents[2]
    definition = re.compile(rf"def {re.escape(function)}\(")
    return [
        ".".join(path.relative_to(root).with_suffix("").parts)
        for package in _OURS
        for path in sorted((root / package).rglob("*.py"))
        if definition.search(path.read_text("utf-8"))
    ]


def _compiled(name: str, edit: Edit, owner: object, attribute: str, original: object) -> object:
    function = _function_in(original)
    if function is None:
        raise MutantGone(
            f"mutant {name}: {edit.target} must be a function with Python source; change the "
            "mutant's edit in simulations/mutants"
        )
    source = textwrap.dedent(inspect.getsource(function))
    old, new = textwrap.dedent(edit.old).strip("\n"), textwrap.dedent(edit.new).strip("\n")
    changed = _replaced(source, old, new)
    if changed is None:
        raise MutantGone(
            f"mutant {name}: {edit.target} must contain this code exactly once: {edit.old!r}; read "
            "the function and change the mutant's edit in simulations/mutants"
        )
    # A function around it gives `super()` the class that it looks for.
    text = "def make(__class__):\n" + textwrap.indent(changed, "    ") + f"    return {attribute}\n"
    scope: dict[str, object] = {}
    exec(  # noqa: S102 - that is what a mutant is: our own source, with a mistake in it.
        compile(text, f"<mutant {name}>", "exec"), inspect.unwrap(function).__globals__, scope
    )
    make = scope["make"]
    assert callable(make)
    return make(owner)


def _replaced(source: str, old: str, new: str) -> str | None:
    """Replace the code `old` by `new` in a function's source, adapting identifiers and indentation.

    Returns None unless exactly one place matches. A place with the same identifiers is preferred to
    places where they have been renamed.
    """
    tokens, pattern = _tokens(source), _tokens(old)
    matches = [
        (at, renames)
        for at in range(len(tokens) - len(pattern) + 1)
        if (renames := _renames(pattern, tokens[at : at + len(pattern)])) is not None
    ]
    exact = [match for match in matches if all(one == other for one, other in match[1].items())]
    if len(exact or matches) != 1:
        return None
    at, renames = (exact or matches)[0]
    start, end = tokens[at].start(), tokens[at + len(pattern) - 1].end()
    line = source[source.rfind("\n", 0, start) + 1 :]
    margin = line[: len(line) - len(line.lstrip())]
    return source[:start] + _renamed(new, renames).replace("\n", "\n" + margin) + source[end:]


def _tokens(code: str) -> list[re.Match[str]]:
    return [match for match in _TOKEN.finditer(code) if match.lastgroup != "space"]


def _renames(
    pattern: Sequence[re.Match[str]], found: Sequence[re.Match[str]]
) -> dict[str, str] | None:
    """Return how identifiers of a mutant's quoted code are named in the found code; None if the
    code differs.

    At least half of the identifiers must be equal, so that unrelated code does not match.
    """
    renames: dict[str, str] = {}
    for one, other in zip(pattern, found, strict=True):
        if one.lastgroup == other.lastgroup == "name":
            is_keyword = iskeyword(one.group()) or iskeyword(other.group())
            known = one.group() if is_keyword else renames.setdefault(one.group(), other.group())
            if known != other.group():
                return None
        elif one.group() != other.group():
            return None
    same = sum(one == other for one, other in renames.items())
    is_one_to_one = len(set(renames.values())) == len(renames)
    return renames if is_one_to_one and 2 * same >= len(renames) else None


def _renamed(code: str, renames: Mapping[str, str]) -> str:
    return "".join(
        renames.get(match.group(), match.group()) if match.lastgroup == "name" else match.group()
        for match in _TOKEN.finditer(code)
    )


def _function_in(found: object) -> FunctionType | None:
    """Return the function inside a property or class method, or the function itself; None for other
    objects."""
    if isinstance(found, property):
        found = found.fget
    function = getattr(found, "__func__", found)
    return function if isinstance(function, FunctionType) else None


def _places(owner: object, attribute: str, original: object) -> list[object]:
    """Return the objects in which a mutant must replace a function: its class, or each module that
    has imported it."""
    if not isinstance(owner, ModuleType):
        return [owner]
    return [
        module
        for name, module in sorted(sys.modules.items())
        if (module is owner or name.partition(".")[0] in _OURS)
        and vars(module).get(attribute) is original
    ]
