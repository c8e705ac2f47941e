import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HEAVY = ("yaml", "rich", "click", "ringfence.rules.loading.yaml_files", "ringfence.rules.report")


def modules_after(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(completed.stdout.split())


def test_importing_the_rules_does_not_import_yaml():
    assert modules_after("import ringfence.rules").isdisjoint(HEAVY)


def test_importing_the_mapping_loader_does_not_import_yaml():
    loaded = modules_after("from ringfence.rules.loading.mapping import load_mapping")

    assert "yaml" not in loaded


def test_only_the_composer_imports_yaml():
    modules = (ROOT / "ringfence" / "rules").rglob("*.py")

    assert [path.name for path in modules if "import yaml" in path.read_text("utf-8")] == [
        "yaml_composer.py"
    ]
