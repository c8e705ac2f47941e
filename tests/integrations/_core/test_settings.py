"""Settings, their form as keyword arguments, and what importing a face brings along."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ringfence import ConfigError
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.settings import Options, Settings, ViewOptions

ROOT = Path(__file__).parents[3]


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"domain": 5}, "domain 5 makes no sense; give the name of a domain"),
        ({"limit": 5}, "limit 5 makes no sense; give '5/minute'"),
        ({"limit": b"5/m"}, "limit b'5/m' makes no sense"),
        ({"limit": ["5/m", 5]}, "makes no sense; give '5/minute'"),
        ({"scope": 5}, "scope 5 makes no sense; give text"),
        ({"namespace": 5}, "namespace 5 makes no sense; give text"),
        ({"cost": "5"}, "cost '5' makes no sense; give a whole number"),
        ({"cost": 1.5}, "cost 1.5 makes no sense"),
        ({"cost": {"/": "5"}}, "makes no sense; give a whole number"),
        ({"deduct_when": 401}, "deduct_when 401 makes no sense; give a function of the response"),
        ({"cost_after": 3}, "cost_after 3 makes no sense; give a function"),
        ({"user": "ann"}, "user 'ann' makes no sense; give a function"),
        ({"trusted_proxies": None}, "trusted_proxies None makes no sense"),
        (
            {"exempt_paths": "/ping"},
            r"exempt_paths '/ping' makes no sense; give a list, .*\['/ping'",
        ),
        ({"exempt_paths": None}, "exempt_paths None makes no sense; give a list"),
        ({"exempt_methods": "HEAD"}, "exempt_methods 'HEAD' makes no sense; give a list"),
        ({"exempt_methods": [7]}, "makes no sense; give a list"),
        ({"exempt_when": True}, "exempt_when True makes no sense; give a function"),
        ({"template": "x.html"}, "template 'x.html' makes no sense; give a function"),
        ({"timeout": "x"}, "timeout 'x' makes no sense; give seconds"),
        ({"timeout": -1}, "timeout -1 makes no sense"),
        ({"enabled": "no"}, "enabled 'no' makes no sense; give True or False"),
        ({"keys": None}, "keys None is neither"),
        ({"keys": {"a": 3}}, "key 'a' 3 is no function"),
        ({"keys": {3: "ip"}}, "key 3 is not text"),
        ({"key": "ip"}, "setting 'key' is not known; did you mean 'keys'"),
        ({"costs": 2}, "setting 'costs' is not known; did you mean 'cost'"),
        ({"xyzzy": 2}, "setting 'xyzzy' is not known; there are cost, "),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_mend(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Policy(Settings(**options))
    with pytest.raises(ConfigError, match=told):
        Policy(Settings()).for_view("view", options.get("limit", "5/m"), without_limit(options))


def without_limit(options: dict[str, object]) -> Any:
    return {name: value for name, value in options.items() if name != "limit"}


async def awaited(*_: object) -> None: ...


def yielding(*_: object) -> Iterator[None]:
    yield


class Awaited:
    async def __call__(self, *_: object) -> None: ...


@pytest.mark.parametrize("function", [awaited, partial(awaited, 1), Awaited(), yielding])
@pytest.mark.parametrize(
    "setting",
    ["limit", "keys", "cost", "deduct_when", "cost_after", "user", "exempt_when", "template"],
)
def test_functions_that_nobody_would_await_are_refused(setting: str, function: object) -> None:
    options: Any = {setting: function}
    with pytest.raises(ConfigError, match="must be a plain function") as caught:
        Policy(Settings(**options))

    assert setting in str(caught.value) or setting == "keys"


def test_an_asynchronous_function_among_entries_of_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"key 'tenant' 'awaited' must be a plain function"):
        Policy(Settings(keys=["ip", {"tenant": awaited}]))


@pytest.mark.parametrize(
    ("setting", "function", "wanted"),
    [
        ("user", lambda: 1, "request"),
        ("limit", lambda: "5/m", "request"),
        ("cost", lambda request, response: 1, "request"),
        ("exempt_when", lambda: True, "request"),
        ("deduct_when", lambda request, response: True, "response"),
        ("cost_after", lambda response: 1, "request, response"),
        ("template", lambda: "no", "refusal"),
        ("keys", lambda: "key", "request"),
        ("keys", {"tenant": lambda a, b: "acme"}, "request"),
    ],
)
def test_functions_with_another_number_of_arguments_are_refused(
    setting: str, function: object, wanted: str
) -> None:
    options: Any = {setting: function}
    with pytest.raises(ConfigError, match=rf"can be called with {wanted}, got '.*lambda.*\("):
        Policy(Settings(**options))


def test_functions_that_take_more_by_default_or_hide_their_arguments_are_taken() -> None:
    Policy(Settings(user=lambda request, fallback=None: "ada", cost_after=lambda *_: 1))
    Policy(Settings(keys={"path": str}, exempt_when=dict))  # type: ignore[arg-type]
