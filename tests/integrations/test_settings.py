"""Settings, their form as keyword arguments, and what importing a face brings along."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from ringfence.integrations.settings import Options, Settings, ViewOptions

ROOT = Path(__file__).parents[2]


def test_every_setting_can_be_given_by_name() -> None:
    names = {field.name for field in fields(Settings)}

    assert names == set(Options.__annotations__) | set(ViewOptions.__annotations__)
    assert names - set(ViewOptions.__annotations__) == {"limit"}


def test_plain_asgi_and_wsgi_need_no_framework() -> None:
    frameworks = ["starlette", "fastapi", "flask", "werkzeug", "django", "litestar"]
    program = (
        "import sys, ringfence.integrations.asgi, ringfence.integrations.wsgi; "
        f"print(*(sys.modules.keys() & set({frameworks})))"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == ""
