"""The oracle shares no code with what it judges."""

import subprocess
import sys

import pytest

from tests.project.test_floors import ROOT, imports, modules

FOLDER = "simulations/oracle"


def foreign_imports(module: str, source: str) -> list[str]:
    """Return imports that are neither of the standard library nor of the oracle itself."""
    return [
        f"{module}, line {line}: {target}"
        for line, target in imports(module, source)
        if target.split(".")[0] not in sys.stdlib_module_names
        and not target.startswith("simulations.oracle.")
    ]


def test_the_oracle_imports_only_itself_and_the_standard_library() -> None:
    sources = {module: path.read_text("utf-8") for module, path in modules(FOLDER)}

    assert [each for item in sources.items() for each in foreign_imports(*item)] == []
    assert len(sources) > 3


def test_importing_the_oracle_loads_no_part_of_the_limiter() -> None:
    program = "import sys, simulations.oracle; print(*(n for n in sys.modules if 'ringfence' in n))"

    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert [name for name in loaded.stdout.split() if not name.startswith("__editable__")] == []


@pytest.mark.parametrize(
    "source",
    [
        "from ringfence.limiter import Limit",
        "import ringfence",
        "from ringfence.rules import Rule",
        "from simulations.judging.ledger import Ledger",
        "def late():\n    from ringfence.limiter.limit import Algorithm",
    ],
)
def test_a_foreign_import_of_the_oracle_is_found(source: str) -> None:
    assert len(foreign_imports("simulations.oracle.replay", source)) == 1
