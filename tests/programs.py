"""Programs that tests start and that `pip install` does not bring.

Where a program is not installed, its tests are skipped and the reason says how to install it.
With RINGFENCE_ALL_PROGRAMS=1, as `.ci/run` sets it, these tests fail instead.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from ringfence.limiter import why_not_compiled

__all__ = ["SYSTEM_PATH", "require", "require_compiled"]

_GO_BIN = os.environ.get("GOBIN") or Path.home() / "go" / "bin"
SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin:{_GO_BIN}"
"""Where programs are searched; Debian installs servers into folders for administrators."""

_INSTALL = {
    "caddy": "apt-get install caddy",
    "chromium": "apt-get install chromium",
    "h2spec": "go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible",
    "haproxy": "apt-get install haproxy",
    "nginx": "apt-get install nginx-light",
    "systemd-analyze": "apt-get install systemd",
}
"""Command that installs each program."""


def require(program: str) -> str:
    """Return the path of a program, or skip the test that needs it.

    Call it in a test or a fixture, so that only the tests that need the program are skipped.
    """
    path = shutil.which(program, path=SYSTEM_PATH)
    if path is None:
        _miss(f"{program} is not installed; install it with: {_INSTALL[program]}")
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
