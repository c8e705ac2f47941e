"""Programs that tests start and that `pip install` does not bring.

Where a program is not installed, its tests are skipped and the reason says how to install it.
With RINGFENCE_ALL_PROGRAMS=1, as `.ci/run` sets it, these tests fail instead.
"""

import os
import shutil
from typing import NoReturn

import pytest

from ringfence.limiter import why_not_compiled

__all__ = ["SYSTEM_PATH", "require", "require_compiled"]

SYSTEM_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
"""Where programs are searched; Debian installs servers into folders for administrators."""

_DEBIAN_PACKAGES = {
    "caddy": "caddy",
    "chromium": "chromium",
    "haproxy": "haproxy",
    "nginx": "nginx-light",
    "systemd-analyze": "systemd",
}


def require(program: str) -> str:
    """Return the path of a program, or skip the test that needs it.

    Call it in a test or a fixture, so that only the tests that need the program are skipped.
    """
    path = shutil.which(program, path=SYSTEM_PATH)
    if path is None:
        package = _DEBIAN_PACKAGES[program]
        _miss(f"{program} is not installed; install it with: apt-get install {package}")
    return path


def require_compiled() -> None:
    """Skip the test, or the module that calls this at import, without the compiled engine."""
    reason = why_not_compiled()
    if reason is not None:
        _miss(f"{reason}; install a C compiler and repeat: pip install -e '.[dev]'")


def _miss(reason: str) -> NoReturn:
    if os.environ.get("RINGFENCE_ALL_PROGRAMS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
