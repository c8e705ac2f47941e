"""What a mutant is, and how it is planted: the source of a function with a few words changed.

Decides nothing about which mistakes there are. Nothing is written to any file: the changed function
takes the place of the real one in this process, for as long as a block runs.
"""

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType, ModuleType

__all__ = ["Edit", "Mutant", "MutantGone", "planted"]

_OURS = ("hashring", "gossip", "ringfence", "node", "simulations")


class MutantGone(LookupError):
    """The code that a mutant changes is no longer what it was."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Words of one function that are changed."""

    target: str
    """Module and function, as in `gossip.local_member:LocalMember.hear`."""
    old: str
    """Words of its source that stand there once, white space at line ends and starts aside."""
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    name: str
    about: str
    """One sentence: what is wrong."""
    edits: tuple[Edit, ...]
    grounds: tuple[str, ...]
    """Names of the scenarios that hunt it, the likeliest to notice first."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run a block with a mistake in the code; everything is as before afterwards.

    Raises `MutantGone` when the code has changed, so that the mistake cannot be made any more.
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
    """Find the object that has the target, the target's own name, and the target as it stands."""
    module_name, _, path = edit.target.partition(":")
    *outer, attribute = path.split(".")
    owner: object = import_module(module_name)
    for part in outer:
        owner = getattr(owner, part, None)
    found = vars(owner).get(attribute) if owner is not None else None
    if found is None:
        raise MutantGone(
            f"mutant {name}: there is no {edit.target} any more; look where that code is now, and "
            "change the mutant's edit in simulations/mutants"
        )
    return owner, attribute, found


def _compiled(name: str, edit: Edit, owner: object, attribute: str, original: object) -> object:
    function = _function_in(original)
    if function is None:
        raise MutantGone(
            f"mutant {name}: {edit.target} is no function with Python source; aim the edit in "
            "simulations/mutants at one that is"
        )
    source = textwrap.dedent(inspect.getsource(function))
    old, new = textwrap.dedent(edit.old).strip("\n"), textwrap.dedent(edit.new).strip("\n")
    changed = _replaced(source, old, new)
    if changed is None:
        raise MutantGone(
            f"mutant {name}: {edit.target} does not have these words once: {edit.old!r}; read what "
            "stands there now, and change the mutant's edit in simulations/mutants"
        )
    # A function around it gives `super()` the class that it looks for.
    text = "def make(__class__):\n" + textwrap.indent(changed, "    ") + f"    return {attribute}\n"
    scope: dict[str, object] = {}
    exec(  # noqa: S102 - that is what a mutant is: our own source, with a mistake in it.
        compile(text, f"<mutant {name}>", "exec"), function.__globals__, scope
    )
    make = scope["make"]
    assert callable(make)
    return make(owner)


def _replaced(source: str, old: str, new: str) -> str | None:
    """Put `new` in the place of `old`, with the indentation that it has; None unless it is there
    once."""
    lines = source.split("\n")
    wanted = old.split("\n")
    if len(wanted) == 1:
        if source.count(old) != 1:
            return None
        line = next(line for line in lines if old in line)
        margin = line[: len(line) - len(line.lstrip())]
        return source.replace(old, new.replace("\n", "\n" + margin))
    found = [
        at
        for at in range(len(lines) - len(wanted) + 1)
        if textwrap.dedent("\n".join(lines[at : at + len(wanted)])) == old
    ]
    if len(found) != 1:
        return None
    at = found[0]
    margin = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines[at : at + len(wanted)] = textwrap.indent(new, margin).split("\n")
    return "\n".join(lines)


def _function_in(found: object) -> FunctionType | None:
    """The function itself, also of a property or of a class's method; None when it is none."""
    if isinstance(found, property):
        found = found.fget
    function = getattr(found, "__func__", found)
    return function if isinstance(function, FunctionType) else None


def _places(owner: object, attribute: str, original: object) -> list[object]:
    """Where the target stands: in its class, or in each module of ours that has imported it."""
    if not isinstance(owner, ModuleType):
        return [owner]
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] in _OURS and vars(module).get(attribute) is original
    ]
