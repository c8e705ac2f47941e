import subprocess
import sys

import pytest


@pytest.mark.parametrize("extra", ["limits", "httpx"])
def test_an_integration_without_its_extra_names_the_extra_to_install(extra):
    program = f"import sys; sys.modules[{extra!r}] = None; import ringfence.integrations.{extra}"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert result.returncode == 1
    assert f"pip install '.[{extra}]' in a checkout" in result.stderr


def test_the_decorator_needs_no_extra():
    program = (
        "import sys; sys.modules['limits'] = sys.modules['httpx'] = None; "
        "import ringfence.integrations.decorator, ringfence.integrations.testing"
    )

    subprocess.run([sys.executable, "-c", program], check=True)
