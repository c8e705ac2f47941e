"""Static search for code that makes equal seeds differ: clocks, global random, unordered sets.

The search resolves imported names, and recognizes sets by their creation or annotation. It does not
recognize sets that a function of another module returns.
"""

import ast
from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["found_in"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_MODULES = ("time", "secrets", "uuid", "threading", "socket", "subprocess")
"""Forbidden names."""
_NAMES = (
    "os.urandom",
    "os.environ",
    "os.getenv",
    "os.getpid",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "weakref.WeakSet",
)
_BUILTINS = ("hash", "id", "input")
_ORDERED_BY = ("list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reversed", "dict")
"""Builtins that keep the order of their argument."""
_SET_METHODS = (
    "union",
    "intersection",
    "difference",
    "symmetric_difference",
)
_SET_TYPES = ("set", "frozenset", "Set", "AbstractSet", "MutableSet")
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)


def found_in(source: str) -> list[tuple[int, str]]:
    """Return line and name of every use that depends on more than the seed."""
    reader = _Reader(ast.parse(source))
    return sorted({*reader.uses(), *reader.unordered()})


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self._scopes: list[list[ast.AST]] = [[]]
        """Code outside of functions, then each function with its nested code."""
        self._gather(tree, self._scopes[0])
        self._nodes = [node for scope in self._scopes for node in scope]
        self._origins = dict(_imported(self._nodes))
        self._attributes = set(_attributes_with_sets(self._nodes))

    def _gather(self, parent: ast.AST, scope: list[ast.AST]) -> None:
        for node in ast.iter_child_nodes(parent):
            inner = scope
            if isinstance(node, _Function) and scope is self._scopes[0]:
                inner = []
                self._scopes.append(inner)
            inner.append(node)
            self._gather(node, inner)

    def uses(self) -> Iterator[tuple[int, str]]:
        """Yield uses of clocks, global random and memory addresses."""
        inner = {id(node.value) for node in self._nodes if isinstance(node, ast.Attribute)}
        for node in self._nodes:
            match node:
                case ast.Attribute() | ast.Name() if id(node) not in inner:
                    name = self._origin(node)
                    if name is not None and _is_banned(name):
                        yield node.lineno, name
                case ast.Call(func=ast.Name(id=name)) if name in _BUILTINS:
                    if name not in self._origins:
                        yield node.lineno, f"{name}()"

    def _origin(self, node: ast.expr) -> str | None:
        """Return the dotted name of an expression at its origin."""
        match node:
            case ast.Name(id=name):
                return self._origins.get(name)
            case ast.Attribute(value=value, attr=attribute):
                before = self._origin(value)
                return None if before is None else f"{before}.{attribute}"
        return None

    def unordered(self) -> Iterator[tuple[int, str]]:
        """Yield places where the order of a set has an effect."""
        for nodes in self._scopes:
            yield from self._in(nodes, set(_names_with_sets(nodes, self._attributes)))

    def _in(self, nodes: list[ast.AST], names: set[str]) -> Iterator[tuple[int, str]]:
        sums = {id(c) for n in nodes for c in _harmless(n)}
        for node in nodes:
            for one in _walked(node):
                if id(node) not in sums and _is_set(one, names, self._attributes):
                    yield one.lineno, f"order of {ast.unparse(one)}"


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Return the names in a module with their origins."""
    for node in nodes:
        match node:
            case ast.Import():
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    yield name, alias.name if alias.asname else name
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"


def _is_banned(name: str) -> bool:
    module, _, rest = name.partition(".")
    if module == "random":
        return rest not in ("", "Random") and not rest.startswith("Random.")
    return (module in _MODULES and rest != "") or name in _NAMES


def _harmless(node: ast.AST) -> Iterator[ast.AST]:
    """Return generators whose order has no effect, since their consumer sorts or counts."""
    match node:
        case ast.Call(func=ast.Name(id="sorted" | "any" | "all" | "set" | "frozenset" | "len")):
            yield from node.args
        case ast.Call(func=ast.Name(id="sum" | "max" | "min"), keywords=[]):
            yield from node.args
        case ast.Call(func=ast.Attribute(attr="update" | "difference_update")):
            yield from node.args


def _walked(node: ast.AST) -> Iterator[ast.expr]:
    """Return the expressions over which code iterates."""
    match node:
        case ast.For() | ast.AsyncFor():
            yield node.iter
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            yield from (each.iter for each in node.generators)
        case ast.Call(func=ast.Name(id=name)) if name in _ORDERED_BY:
            yield from node.args
        case ast.Call(func=ast.Attribute(attr="join" | "extend" | "fromkeys"), args=args):
            yield from args
        case ast.Call(func=ast.Attribute(attr="pop", value=value), args=[]):
            yield value
        case ast.List() | ast.Tuple() | ast.Call():
            parts = node.args if isinstance(node, ast.Call) else node.elts
            yield from (part.value for part in parts if isinstance(part, ast.Starred))


def _is_set(node: ast.expr, names: set[str], attributes: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr=method)) if method in _SET_METHODS:
            return True
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SET_OPERATORS):
            sides = (left, right)
            return any(_is_set(side, names, attributes) or _is_keys(side) for side in sides)
        case ast.IfExp(body=body, orelse=orelse):
            return any(_is_set(side, names, attributes) for side in (body, orelse))
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=attribute, value=ast.Name(id="self")):
            return attribute in attributes
    return False


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".keys")


def _is_set_type(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    name = ast.unparse(annotation).partition("[")[0]
    return name.rpartition(".")[2] in _SET_TYPES


def _names_with_sets(nodes: list[ast.AST], attributes: set[str]) -> Iterator[str]:
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.arg(arg=name, annotation=annotation) if _is_set_type(annotation):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                if _is_set_type(annotation):
                    yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if _is_set(value, names, attributes):
                    yield name
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                if _is_set(value, names, attributes):
                    yield name


def _attributes_with_sets(nodes: list[ast.AST]) -> Iterator[str]:
    """Return attributes and properties of `self` that are sets."""
    for node in nodes:
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name) | ast.Name(id=name)):
                if _is_set_type(node.annotation):
                    yield name
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                if _is_set(value, set(), set()):
                    yield name
            case ast.FunctionDef(name=name, returns=returns, decorator_list=decorators):
                is_property = "property" in [ast.unparse(each) for each in decorators]
                if is_property and _is_set_type(returns):
                    yield name
