import subprocess
import sys

import pytest

from ringfence.limiter import Code, EngineRule, Limit
from ringfence.peering.engine_choice import ENVIRONMENT, chosen_engine, new_engine
from tests.programs import require_compiled

KEY = bytes(8) + b"key"


@pytest.mark.parametrize("asked", ["", "auto", "reference"])
def test_each_engine_counts(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(ENVIRONMENT, asked)
    engine = new_engine(max_keys=10, keeps_keys=True)
    engine.set_rules({0: EngineRule(Limit.of_ns(1, 10**9))})

    codes = [engine.decide([KEY], [1], [], [], [], 5).codes[0] for _ in range(2)]

    assert codes == [Code.ALLOWED, Code.DENIED]
    assert engine.keys() == [KEY]


def test_an_engine_without_stored_keys_lists_only_keys_without_rule() -> None:
    require_compiled()
    engine = new_engine(max_keys=10)
    engine.set_rules({1: EngineRule(Limit.of_ns(1, 10**9))})
    engine.decide([KEY], [1], [], [Limit.of_ns(3, 10**9)], [1], 5)
    engine.set_rules({0: EngineRule(Limit.of_ns(2, 10**9))})

    assert engine.decide([KEY], [0], [], [], [], 5).remaining == [1]
    engine.decide([KEY + b"2"], [1], [], [], [], 5)
    with pytest.raises(LookupError, match="identity alone"):
        engine.keys()


def test_the_choice_has_the_name_of_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "reference")

    assert chosen_engine().name == "reference"


def test_without_compiled_modules_the_reference_runs_with_a_reason() -> None:
    program = """
import sys
sys.modules["ringfence.limiter.compiled._frames"] = None
from ringfence.peering.engine_choice import chosen_engine, new_engine
print(chosen_engine().name, chosen_engine().reason, len(new_engine(max_keys=1)))
"""

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout.startswith("reference the compiled modules were not built")
    assert ran.stdout.endswith("0\n")
