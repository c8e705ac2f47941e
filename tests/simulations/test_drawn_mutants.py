import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ringfence.errors import ConfigError
from simulations.mutants.drawn import (
    DrawnMutant,
    Equivalent,
    Kill,
    LineMap,
    Measured,
    as_row,
    draw_mutants,
    find_mutant,
    known_equivalents,
    measure_simulator,
    score_of,
)
from simulations.mutants.drawn import server as server_module
from simulations.mutants.drawn.sample import ROOT
from simulations.mutants.drawn.server import TEST_LIBRARIES, Server, check_test_libraries
from simulations.mutants.drawn.tool import Variant, find_places, mutate
from simulations.mutants.value import MutantGone

CODE = '''\
"""Small module."""

MOST = 3


def clip(number: "int | None", least: int = 0) -> "int | None":
    """Return a number between two bounds."""
    if number is None:
        return None
    return max(least, min(MOST, number))


def count_down(number: int) -> int:
    steps = 0
    while number > 0:
        number -= 1
        steps += 1
    return steps
'''
TESTS = """\
import subprocess, sys
from box.clip import clip, count_down

def test_numbers_are_clipped():
    assert clip(2) == 2 and clip(9) == 3

def test_no_number_stays_none():
    assert clip(None) is None

def test_steps_are_counted():
    assert count_down(2) == 2

def test_another_process_clips():
    code = "from box.clip import clip; print(clip(9))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=".")
    assert done.stdout == "3\\n", done.stderr
"""
PATH = "box/clip.py"
TEST_FILE = "test_box.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a package of one module, and its tests."""
    root = tmp_path_factory.mktemp("root")
    (root / "box").mkdir()
    (root / "box" / "__init__.py").touch()
    (root / PATH).write_text(CODE, "utf-8")
    (root / TEST_FILE).write_text(TESTS, "utf-8")
    # Pytest imports the modules of plug-ins by its own loader.
    (root / "conftest.py").write_text('pytest_plugins = ["box.clip"]', "utf-8")
    return root


def mutant_at(root: Path, text: str, operator: str) -> DrawnMutant:
    """Return the first mutant of a text in the module by an operator."""
    source = (root / PATH).read_text("utf-8")
    offset = source.index(text)
    line = source.count("\n", 0, offset) + 1
    column = offset - source.rfind("\n", 0, offset)
    return find_mutant(f"{PATH}:{line}:{column}:{operator}:1", root)


# The sample


def test_a_place_has_every_mutation_of_its_operators() -> None:
    [compared, number] = find_places("def f(a):\n    return a < 5\n")

    assert (compared.start, compared.end) == ((2, 13), (2, 14))
    assert "ReplaceComparisonOperator_Lt_GtE" in [each.operator for each in compared.variants]
    assert [mutate("x = 5\n", each) for each in find_places("x = 5\n")[0].variants] == [
        "x = 6\n",
        "x = 4\n",
    ]
    assert [each.operator for each in number.variants] == ["NumberReplacer"] * 2


def test_a_mutation_that_the_module_does_not_have_is_rejected() -> None:
    with pytest.raises(LookupError):
        mutate("x = 5\n", Variant("NumberReplacer", 2))


def test_equal_seeds_draw_equal_mutants(root: Path) -> None:
    one, again, other = (draw_mutants(seed, 8, ("box",), root) for seed in (1, 1, 2))

    assert one == again
    assert [each.name for each in one] != [each.name for each in other]
    assert len({each.start for each in one}) == 8  # No place is drawn twice.


def test_all_drawn_mutants_are_valid_python_and_none_is_in_a_type(root: Path) -> None:
    drawn = draw_mutants(3, 1000, ("box",), root)

    assert {each.old for each in drawn} == {
        "MOST = 3",
        'def clip(number: "int | None", least: int = 0) -> "int | None":',
        "if number is None:",
        "steps = 0",
        "while number > 0:",
        "number -= 1",
        "steps += 1",
    }
    assert all(compile(each.source, PATH, "exec") for each in drawn)


@pytest.mark.parametrize(
    "code",
    [
        "x: int | None\n",
        "Both = int | str\n",
        "Either: object = list[int | str]\n",
        "def f(a: int | str, *b: int | str) -> int | None: pass\n",
        "class A:\n    x: int | None\n",
        "class A(B, Protocol):\n    @property\n    def x(self, *, y: bool = True) -> int: ...\n",
    ],
)
def test_unions_of_types_are_not_drawn(code: str, tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text(code, "utf-8")

    assert draw_mutants(1, 5, (".",), tmp_path) == []


def test_a_name_stands_for_one_mutant(root: Path) -> None:
    for mutant in draw_mutants(4, 10, ("box",), root):
        assert find_mutant(mutant.name, root) == mutant


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("box/clip.py:1:1:AddNot:1", "box/clip.py has no mutation '1:1:AddNot:1'; names change"),
        ("box/clip.py", "box/clip.py has no mutation ''"),
        ("no.py:1:1:AddNot:1", "of a Python file, got 'no.py:1:1:AddNot:1'; names change"),
    ],
)
def test_a_name_of_no_mutant_is_rejected(name: str, said: str, root: Path) -> None:
    with pytest.raises(MutantGone, match=said):
        find_mutant(name, root)


def test_a_mutant_names_its_function_and_its_change(root: Path) -> None:
    mutant = mutant_at(root, "> 0:", "ReplaceComparisonOperator_Gt_GtE")

    assert (mutant.module, mutant.function) == ("box.clip", "count_down")
    assert mutant.about == "`while number > 0:` becomes `while number >= 0:`"


@pytest.mark.parametrize("module", ["cosmic_ray.ast", "coverage"])
def test_a_missing_tool_is_reported_with_its_remedy(
    module: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulations.mutants.drawn import tool

    tool._tool.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    try:
        with pytest.raises(ConfigError, match=r"pip install 'ringfence\[mutants\]'"):
            draw_mutants(1, 1, ("box",), root)
    finally:
        tool._tool.cache_clear()


# Equivalents


def test_each_equivalent_has_a_reason_and_its_code_exists() -> None:
    for each in known_equivalents():
        assert each.reason
        assert each.old != each.new
        if each.module != "*":
            path = ROOT / Path(*each.module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            code = "".join(file.read_text("utf-8").split())
            assert "".join(each.old.split()) in code, each


def test_an_equivalent_matches_only_its_own_mutant(root: Path) -> None:
    mutant = mutant_at(root, "> 0:", "ReplaceComparisonOperator_Gt_GtE")
    same = Equivalent(
        mutant.module,
        mutant.function,
        "ReplaceComparisonOperator_Gt_GtE",
        "while  number > 0:",
        mutant.new,
        "any",
    )

    assert same.matches(mutant)
    assert replace(same, module="*", function="*").matches(mutant)
    assert not replace(same, module="box.other").matches(mutant)
    assert not replace(same, function="clip").matches(mutant)
    assert not replace(same, old="while number > 1:").matches(mutant)
    assert not replace(same, new="while number < 0:").matches(mutant)
    assert not replace(same, operator="AddNot").matches(mutant)


# Which tests run a line


CLIPPED, NONE, STEPS = (
    f"{TEST_FILE}::{name}"
    for name in ("test_numbers_are_clipped", "test_no_number_stays_none", "test_steps_are_counted")
)
SECONDS = {CLIPPED: 0.3, NONE: 0.2, STEPS: 0.1}
RECORDED = {
    PATH: {
        "8": [CLIPPED, NONE],
        "9": [NONE],
        "10": [CLIPPED],
        "14": [STEPS],
        "15": [STEPS],
    }
}


@pytest.fixture
def line_map(root: Path) -> LineMap:
    """Create a map with records of three tests."""
    found = LineMap(root)
    found.add(SECONDS, RECORDED, [TEST_FILE])
    return found


@pytest.mark.parametrize(
    ("text", "operator", "tests"),
    [
        ("is None", "ReplaceComparisonOperator_Is_IsNot", [NONE, CLIPPED]),
        ("> 0:", "ReplaceComparisonOperator_Gt_GtE", [STEPS]),
        ("1\n        steps", "NumberReplacer", [STEPS]),  # This line was not run, but its function.
        ("0) ->", "NumberReplacer", [NONE, CLIPPED]),
        ("3\n", "NumberReplacer", [CLIPPED]),  # Only this test runs the line with the constant.
    ],
)
def test_the_tests_of_a_mutant_run_its_line(
    text: str, operator: str, tests: list[str], line_map: LineMap, root: Path
) -> None:
    mutant = mutant_at(root, text, operator)

    assert line_map.tests_for(mutant) == tests


def test_the_tests_of_the_head_of_a_class_run_a_line_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    code = "class Box(Struct, frozen=True):\n    size: int\n\n\ndef pack():\n    return Box(1)\n"
    (tmp_path / PATH).write_text(code, "utf-8")
    found = LineMap(tmp_path)
    found.add(SECONDS, {PATH: {"6": [CLIPPED], "5": [NONE]}}, [TEST_FILE])

    assert found.tests_for(mutant_at(tmp_path, "True", "ReplaceTrueWithFalse")) == [CLIPPED]


def test_a_line_that_no_exact_test_runs_has_no_tests(line_map: LineMap, root: Path) -> None:
    mutant = mutant_at(root, "1\n        steps", "NumberReplacer")

    assert line_map.tests_for(mutant) == [STEPS]
    assert line_map.tests_for(mutant, is_exact=True) == []


def test_a_map_remains_valid_when_code_moves(line_map: LineMap, root: Path, tmp_path: Path) -> None:
    line_map.save(tmp_path / "map.gz")
    (tmp_path / "box").mkdir()
    moved = CODE.replace("MOST = 3", "MOST = 3\nLEAST = 1").replace("number > 0", "number > -1")
    (tmp_path / PATH).write_text(moved, "utf-8")

    loaded = LineMap.load(tmp_path / "map.gz", tmp_path)

    assert loaded.seconds == SECONDS
    mutant = mutant_at(tmp_path, "is None", "ReplaceComparisonOperator_Is_IsNot")
    assert loaded.tests_for(mutant) == [NONE, CLIPPED]


def test_new_records_of_a_test_file_replace_the_old_ones(line_map: LineMap, root: Path) -> None:
    line_map.add({NONE: 0.5}, {PATH: {"8": [NONE]}}, [TEST_FILE])

    assert line_map.seconds == {NONE: 0.5}
    mutant = mutant_at(root, "is None", "ReplaceComparisonOperator_Is_IsNot")
    assert line_map.tests_for(mutant) == [NONE]


def test_a_missing_map_is_empty(tmp_path: Path) -> None:
    assert LineMap.load(tmp_path / "none.gz").seconds == {}


# The process that applies mutants


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    """Start one process for all requests of this module's tests."""
    with Server(root, libraries=TEST_LIBRARIES) as server:
        yield server


def run_tests(
    server: Server, mutant: DrawnMutant | None, tests: list[str], seconds: float = 60.0
) -> Kill | None:
    files = sorted({test.partition("::")[0] for test in tests})
    fields = {"tests": tests, "files": files, "limits": dict.fromkeys(tests, seconds)}
    return server.request("test", mutant, fields)


def test_a_mutant_is_detected_by_its_test_only_and_no_file_changes(
    server: Server, root: Path
) -> None:
    mutant = mutant_at(root, "is None", "ReplaceComparisonOperator_Is_IsNot")

    assert run_tests(server, None, [CLIPPED, NONE, STEPS]) is None
    assert run_tests(server, mutant, [STEPS]) is None
    kill = run_tests(server, mutant, [STEPS, CLIPPED, NONE])
    assert kill is not None
    assert kill.by == CLIPPED
    assert (root / PATH).read_text("utf-8") == CODE


def test_processes_that_a_test_starts_have_the_mutant_too(server: Server, root: Path) -> None:
    test = f"{TEST_FILE}::test_another_process_clips"

    assert run_tests(server, None, [test]) is None
    kill = run_tests(server, mutant_at(root, "3\n", "NumberReplacer"), [test])
    assert kill is not None
    assert kill.by == test


def test_a_test_can_interrupt_its_process(server: Server, root: Path) -> None:
    test = "import os, signal\ndef test_it():\n    os.kill(os.getpid(), signal.SIGINT)\n"
    (root / "test_interrupt.py").write_text(test, "utf-8")

    kill = run_tests(server, None, ["test_interrupt.py::test_it"])

    assert kill is not None


def test_an_endless_loop_is_detected(server: Server, root: Path) -> None:
    mutant = find_mutant(f"{PATH}:15:18:ReplaceComparisonOperator_Gt_NotEq:1", root)
    endless = replace(mutant, source=mutant.source.replace("number != 0", "True"))

    kill = run_tests(server, endless, [STEPS], seconds=1.0)

    assert kill == Kill(STEPS, "needs too much processor time")


def test_a_module_that_cannot_be_imported_is_detected(server: Server, root: Path) -> None:
    mutant = mutant_at(root, "3\n", "NumberReplacer")

    kill = run_tests(server, replace(mutant, source="1 / 0"), [STEPS])

    assert kill is not None
    assert kill.by == ""


def test_a_module_whose_import_is_endless_is_detected(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = tmp_path / "child.py"
    text = Path(server_module._CHILD).read_text("utf-8")
    child.write_text(text.replace("_IMPORTS_S = 30.0", "_IMPORTS_S = 1.0"), "utf-8")
    monkeypatch.setattr(server_module, "_CHILD", child)
    mutant = mutant_at(root, "3\n", "NumberReplacer")

    with Server(root) as server:
        kill = run_tests(server, replace(mutant, source="while True:\n    pass\n"), [STEPS])

    assert kill == Kill("", "needs too much processor time")


def test_ctrl_c_does_not_end_the_process_while_it_imports_libraries(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "interrupting.py").write_text(code, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with Server(root, libraries=("interrupting", *TEST_LIBRARIES)) as server:
        assert run_tests(server, None, [STEPS]) is None


def test_simulations_need_no_library_of_the_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("hypothesis", "pytest"):
        (tmp_path / f"{name}.py").write_text("raise ImportError(__name__)", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with Server() as server:
        fields = {"runs": ["charges 1"], "limits": {"charges 1": 60.0}}
        assert server.request("simulate", None, fields) is None


@pytest.mark.parametrize("name", ["hypothesis", "pytest_timeout"])
def test_a_missing_library_of_the_tests_is_reported_with_its_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ConfigError, match=rf"but {name} is not installed; install .*\[dev\]"):
        check_test_libraries()


def test_recording_finds_the_lines_and_the_time_of_each_test(server: Server, root: Path) -> None:
    replies: list[dict[str, object]] = []
    fields = {"files": [TEST_FILE], "packages": ["box"], "output": str(server.lines_file)}

    assert server.request("record", None, fields, replies.append) is None

    lines = server.read_lines()[PATH]
    assert lines["9"] == [NONE]
    assert sorted(lines["8"]) == [NONE, CLIPPED]
    assert {CLIPPED, NONE, STEPS} <= {each.get("test") for each in replies}


def test_the_simulator_tests_a_python_variant_in_runs_that_execute_its_line() -> None:
    path = "ringfence/limiter/reference/window.py"
    source = (ROOT / path).read_text("utf-8")
    line = next(
        number for number, text in enumerate(source.splitlines(), 1) if "def check(" in text
    )
    broken = source + "\n\nWindow.check = lambda *words: 1 / 0\n"
    mutant = DrawnMutant(path, (line, 0), Variant("AddNot", 0), 1, "", broken, "", "")
    elsewhere = replace(
        mutant,
        path="node/entry.py",
        source=ROOT.joinpath("node/entry.py").read_text("utf-8"),
        start=(10**6, 0),
    )
    reported: list[Measured] = []

    results, false_alarms = measure_simulator(
        [mutant, elsewhere], ["charges 1"], 1, reported.append
    )

    assert (results, false_alarms) == (reported, [])
    assert [each.tried for each in results] == [1, 0]
    assert results[0].kill is not None
    assert results[0].kill.by == "charges 1"


# Scores


def measured(root: Path, *, is_found: bool, equivalent: str | None = None) -> Measured:
    mutant = mutant_at(root, "is None", "ReplaceComparisonOperator_Is_IsNot")
    return Measured(mutant, Kill("t", "x") if is_found else None, equivalent, 2, 1.0)


def test_equivalents_do_not_count_unless_they_are_detected(root: Path) -> None:
    found, survivor = measured(root, is_found=True), measured(root, is_found=False)
    equivalent = measured(root, is_found=False, equivalent="no effect")
    wrong = measured(root, is_found=True, equivalent="no effect")

    score = score_of([found, survivor, equivalent])
    assert (score["drawn"], score["equivalent"], score["found"]) == (3, 1, 1)
    assert (score["score"], score["not_run"]) == (0.5, 0)
    assert score_of([replace(survivor, tried=0)])["not_run"] == 1
    assert score["not_equivalent"] == []
    assert score_of([wrong])["not_equivalent"] == [wrong.mutant.name]
    assert score_of([wrong])["score"] == 1.0
    assert as_row(survivor)["by"] is None
    assert as_row(found)["by"] == "t"
