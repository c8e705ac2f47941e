"""Programs that use a blocking limiter, run in a Python process of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
RULES_OF_USERS = {
    "domain": "d",
    "descriptors": [{"key": "user", "rate_limit": {"unit": "hour", "requests_per_unit": 9}}],
}


def run_python(code):
    command = [sys.executable, "-W", "ignore", "-c", code]  # From 3.12 on, a fork warns.
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
