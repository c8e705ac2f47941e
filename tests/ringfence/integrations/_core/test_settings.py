"""Settings, their keyword arguments, and the modules that an integration imports."""

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

ROOT = Path(__file__).parents[4]


def test_every_setting_is_a_keyword_argument() -> None:
    names = {field.name for field in fields(Settings)}

    assert names == set(Options.__annotations__) | set(ViewOptions.__annotations__)
    assert names - set(ViewOptions.__annotations__) == {"limit"}


def test_plain_asgi_and_wsgi_import_no_framework() -> None:
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
    ("options", "words"),
    [
        ({"domain": 5}, "domain must be the name of a domain.*, got 5"),
        ({"domain": ""}, "domain must be the name of a domain.*, got ''"),
        ({"limit": 5}, "limit must be '5/minute'.*, got 5"),
        ({"limit": b"5/m"}, "limit must be .*, got b'5/m'"),
        ({"limit": ["5/m", 5]}, "limit must be '5/minute'.*, got .'5/m', 5."),
        ({"scope": 5}, "scope must be text.*, got 5"),
        ({"namespace": 5}, "namespace must be text.*, got 5"),
        ({"cost": "5"}, "cost must be a whole number.*, got '5'"),
        ({"cost": 1.5}, "cost must be a whole number.*, got 1.5"),
        ({"cost": {"/": "5"}}, "cost must be a whole number.*, got {'/': '5'}"),
        ({"cost": {"/": -5}}, "cost of '/' must be a whole number from 0 to .*, got -5"),
        ({"deduct_when": 401}, "deduct_when must be a function of the response.*, got 401"),
        ({"cost_after": 3}, "cost_after must be a function.*, got 3"),
        ({"user": "ann"}, "user must be a function.*, got 'ann'"),
        ({"trusted_proxies": None}, "trusted_proxies must be .*, got None"),
        (
            {"exempt_paths": "/ping"},
            r"exempt_paths must be a list, such as \['/ping'\], got '/ping'",
        ),
        (
            {"exempt_paths": ["/ping", "health"]},
            "exempt_paths must begin with '/', got 'health'; write '/health'",
        ),
        ({"exempt_paths": None}, "exempt_paths must be a list.*, got None"),
        ({"exempt_methods": "HEAD"}, "exempt_methods must be a list.*, got 'HEAD'"),
        ({"exempt_methods": [7]}, "exempt_methods must be a list.*, got .7."),
        ({"block": "no"}, "block must be True or False, got 'no'"),
        ({"exempt_when": True}, "exempt_when must be a function.*, got True"),
        ({"template": "x.html"}, "template must be a function.*, got 'x.html'"),
        ({"timeout": "x"}, "timeout must be seconds.*, got 'x'"),
        ({"timeout": -1}, "timeout must be seconds.*, got -1"),
        ({"enabled": "no"}, "enabled must be True or False, got 'no'"),
        ({"keys": None}, "keys must be a name such as 'ip'.*, got None"),
        ({"keys": {"a": 3}}, "key 'a' must be a function, got 3"),
        ({"keys": {3: "ip"}}, "name of a key must be text, got 3"),
        ({"key": "ip"}, "unknown setting 'key'; did you mean 'keys'"),
        ({"costs": 2}, "unknown setting 'costs'; did you mean 'cost'"),
        ({"xyzzy": 2}, "unknown setting 'xyzzy'; known names are block, cost, "),
    ],
)
def test_the_error_for_an_invalid_setting_states_the_remedy(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Policy(Settings(**options))
    with pytest.raises(ConfigError, match=words):
        Policy(Settings()).for_view("view", options.get("limit", "5/m"), without_limit(options))


def test_all_problems_of_the_settings_are_reported_together() -> None:
    options: Any = {"domian": "api", "limt": "5/m", "xyzzy": 1, "timeout": "x", "enabled": "no"}
    with pytest.raises(ConfigError) as caught:
        Settings(**options)

    error = str(caught.value)
    assert error.startswith("timeout must be seconds, 0 or more, got 'x'; enabled must be True or ")
    assert (
        "unknown setting 'domian'; did you mean 'domain'? unknown setting 'limt'; did you mean "
        "'limit'? unknown setting 'xyzzy'; known names are block, cost, cost_after, "
    ) in error


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
def test_coroutine_functions_are_refused_as_callbacks(setting: str, function: object) -> None:
    options: Any = {setting: function}
    with pytest.raises(ConfigError, match="must be a plain function") as caught:
        Policy(Settings(**options))

    assert setting in str(caught.value) or setting == "keys"


def test_an_asynchronous_function_among_entries_of_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"key 'tenant' 'awaited' must be a plain function"):
        Policy(Settings(keys=["ip", {"tenant": awaited}]))


@pytest.mark.parametrize(
    ("setting", "function", "parameters"),
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
def test_callbacks_with_a_wrong_number_of_arguments_are_refused(
    setting: str, function: object, parameters: str
) -> None:
    options: Any = {setting: function}
    with pytest.raises(ConfigError, match=rf"can be called with {parameters}, got '.*lambda.*\("):
        Policy(Settings(**options))


def test_callbacks_with_defaults_or_an_unknown_signature_are_accepted() -> None:
    Policy(Settings(user=lambda request, fallback=None: "ada", cost_after=lambda *_: 1))
    Policy(Settings(keys={"path": str}, exempt_when=dict))  # type: ignore[arg-type]
