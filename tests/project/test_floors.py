"""Imports of every folder: they point down only, and cores do no I/O and read no clock."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FLOORS = {
    "ringfence.errors": 0,
    "ringfence.runtime": 0,
    "hashring": 1,
    "gossip": 1,
    "ringfence.limiter": 1,
    "ringfence.rules": 2,
    "ringfence.wire": 3,
    "ringfence.transport": 3,
    "ringfence.peering": 3.5,
    "ringfence.client": 4,
    "ringfence.http": 4,
    "ringfence": 4,  # what applications import: the client and its entry points
    "ringfence.settings": 4.25,
    "ringfence.integrations": 4.5,
    "ringfence.gateway": 4.5,
    "node": 5,
    "simulations": 6,
}
ALLOWED_ON_ONE_FLOOR = {
    ("ringfence.transport", "ringfence.wire"),  # a transport carries the frames of the wire
    ("ringfence", "ringfence.client"),
    ("ringfence.http", "ringfence.client"),  # headers and bodies describe a `Decision`
}
"""Allowed imports on one floor: the first folder may import the second."""
WITHOUT_SHARED_ERRORS = {"hashring", "gossip"}
"""Folders with their own errors. They must not import even `ringfence.errors`."""

CORES = ("hashring", "gossip", "ringfence.limiter", "ringfence.rules", "ringfence.wire")
CORE_MODULES = ("ringfence.transport.quic.endpoint",)
SHELLS = ("ringfence.rules.loading.yaml_files",)
"""Modules in a core's folder that only nodes and tools import."""
IMPURE_MODULES = {
    "trio",
    "anyio",
    "asyncio",
    "sniffio",
    "socket",
    "select",
    "selectors",
    "signal",
    "subprocess",
    "threading",
    "time",
}
"""Modules that wait, read a clock or do I/O."""
IMPURE_NAMES = {
    "os.environ",
    "os.environb",
    "os.getenv",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
}


def modules(folder: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def folder_of(module: str) -> str | None:
    """Return the folder in `FLOORS` that contains a module, or None for other modules."""
    parts = module.split(".")
    known = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in known if name in FLOORS), None)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, also those inside functions and classes.

    It is five times as fast as `ast.walk`, which also yields the parts of expressions.
    """
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, name, ()):
            yield node
            yield from statements(node)


@cache
def imports(module: str, source: str, *, is_package: bool = False) -> Sequence[tuple[int, str]]:
    """Return line and dotted name of every import, also inside functions."""
    return [*_imports(module, source, is_package=is_package)]


def _imports(module: str, source: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    for node in statements(ast.parse(source)):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom(level=level):
                parents = module.split(".") if is_package else module.split(".")[:-1]
                base = parents[: len(parents) - level + 1] if level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                # `from ringfence import errors` imports the module `ringfence.errors`.
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def upward_imports(module: str, source: str, *, is_package: bool = False) -> list[str]:
    home = folder_of(module)
    assert home is not None
    found = []
    for line, target in imports(module, source, is_package=is_package):
        other = folder_of(target)
        if other is None or other == home or (home, other) in ALLOWED_ON_ONE_FLOOR:
            continue
        if FLOORS[other] >= FLOORS[home] or home in WITHOUT_SHARED_ERRORS:
            found.append(f"{module}, line {line}: {home} imports {target} of {other}")
    return found


def impure_uses(module: str, source: str) -> list[str]:
    found = []
    for line, target in imports(module, source):
        package, _, name = target.partition(".")
        if package in IMPURE_MODULES or target in IMPURE_NAMES:
            found.append(f"{module}, line {line}: a core imports {target}")
        elif package == "random" and name not in ("", "Random"):
            found.append(f"{module}, line {line}: a core imports {target}; inject a random.Random")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            used = ".".join(ast.unparse(node).split(".")[-2:])
            is_shared_random = used.startswith("random.") and used != "random.Random"
            is_module = isinstance(node.value, ast.Name)
            if used in IMPURE_NAMES or (is_shared_random and is_module and _imports_random(source)):
                found.append(f"{module}, line {node.lineno}: a core uses {used}")
    return found


def _imports_random(source: str) -> bool:
    """Return whether the name `random` is the module and not an injected generator."""
    return any(target == "random" for _, target in imports("any", source))


def is_core(module: str) -> bool:
    if module in SHELLS:
        return False
    return module in CORE_MODULES or folder_of(module) in CORES


@pytest.mark.parametrize("folder", ["hashring", "gossip", "ringfence", "node", "simulations"])
def test_imports_point_down(folder: str) -> None:
    found = [
        upward
        for module, path in modules(folder)
        for upward in upward_imports(
            module, path.read_text("utf-8"), is_package=path.name == "__init__.py"
        )
    ]

    assert not found, found[0]


@pytest.mark.parametrize("folder", ["hashring", "gossip", "ringfence"])
def test_cores_use_no_clock_no_socket_no_shared_random_and_no_environment(folder: str) -> None:
    found = [
        use
        for module, path in modules(folder)
        if is_core(module)
        for use in impure_uses(module, path.read_text("utf-8"))
    ]

    assert not found, found[0]


def test_importing_ringfence_loads_neither_the_node_nor_its_dependencies() -> None:
    heavy = ["node", "gossip", "simulations", "yaml", "click", "rich"]
    heavy += ["h11", "prometheus_client"]
    program = f"import sys\nfrom ringfence import *\nprint(*(sys.modules.keys() & set({heavy})))"

    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == ""


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hashring.ring", "import ringfence"),
        ("hashring.ring", "from ringfence.errors import ConfigError"),
        ("gossip.core", "from hashring import Ring"),
        ("ringfence.limiter.limit", "from ringfence.rules import model"),
        ("ringfence.rules.model", "from ringfence.client import Limiter"),
        ("ringfence.rules.model", "from ringfence import connect"),
        ("ringfence.wire.codecs.message_codec", "from ringfence.transport import interface"),
        ("ringfence.client.url", "def late():\n    import node.config.settings"),
        ("ringfence.client.url", "from ..gateway import serve"),
        ("ringfence.blocking", "import simulations"),
        ("node.service", "from simulations.world import World"),
    ],
)
def test_an_upward_import_is_found(module: str, source: str) -> None:
    (found,) = upward_imports(module, source)

    assert found.startswith(f"{module}, line ")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ringfence.limiter.limit", "from ringfence.errors import ConfigError"),
        ("ringfence.limiter.limit", "from .outcome import Code"),
        ("ringfence.rules.model", "from ringfence import errors"),
        ("ringfence.transport.quic.aioquic_connection", "from ringfence.wire import MAX_MESSAGE"),
        ("ringfence.client.url", "import hashring, ringfence.transport.interface, trio"),
        ("ringfence.blocking", "from ringfence.client import limiter"),
        ("node.service", "from ringfence.peering.link import Link"),
        ("simulations.world", "from node.service import Service"),
    ],
)
def test_a_downward_import_is_accepted(module: str, source: str) -> None:
    assert upward_imports(module, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "import trio.socket",
        "from random import choice",
        "import random\nrandom.shuffle([])",
        "import os\nos.environ['HOME']",
        "from os import environ",
        "import datetime\ndatetime.datetime.now()",
        "def late():\n    import asyncio",
    ],
)
def test_an_impure_use_in_a_core_is_found(source: str) -> None:
    assert len(impure_uses("hashring.ring", source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random",
        "import random\ndef draw(rng: random.Random): return rng.random()",
        "from zoneinfo import ZoneInfo",
        "from datetime import datetime\ndatetime.fromtimestamp(0)",
        "class Core:\n    def next(self): return self.random.choice([1])",
    ],
)
def test_a_core_may_receive_time_and_random_generators_as_arguments(source: str) -> None:
    assert impure_uses("hashring.ring", source) == []


def test_only_the_file_loader_is_exempt_from_the_rule_for_cores() -> None:
    assert is_core("ringfence.rules.ruleset")
    assert is_core("ringfence.transport.quic.endpoint")
    assert not is_core("ringfence.rules.loading.yaml_files")
    assert not is_core("ringfence.transport.quic_trio")
