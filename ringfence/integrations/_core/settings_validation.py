"""Validators of settings, by name. They run when the application starts.

Without them, an invalid setting would be reported at each request, or never: the limiter's error
would count as an outage, and an outage allows requests.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from ringfence.errors import ConfigError
from ringfence.http.callback_checks import require_arguments, require_plain
from ringfence.limiter import Limit

__all__ = ["check_settings", "raise_problems", "setting_problems"]

_Test: TypeAlias = Callable[[object], bool]


def _is_any(value: object) -> bool:
    return True


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_name(value: object) -> bool:
    return _is_text(value) and value != ""


def _is_function(value: object) -> bool:
    return value is None or callable(value)


def _is_limit(value: object) -> bool:
    return _is_function(value) or isinstance(value, str | Limit) or _lists(value, str | Limit)


def _is_cost(value: object) -> bool:
    if isinstance(value, Mapping):
        return _lists(value.keys(), str) and _lists(value.values(), int)
    return isinstance(value, int) or callable(value)


def _is_text_list(value: object) -> bool:
    return _lists(value, str)


def _lists(value: object, kind: type | object) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return False
    return all([isinstance(each, kind) for each in value])  # type: ignore[arg-type]  # or a union


def _is_proxies(value: object) -> bool:
    return isinstance(value, int | str) or (
        isinstance(value, Iterable) and not isinstance(value, bytes)
    )


def _is_duration(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


_CHECKS: Mapping[str, tuple[_Test, str]] = {
    "domain": (_is_name, "the name of a domain of the rules, such as 'api'"),
    "limit": (_is_limit, "'5/minute', a Limit, a list of these, or a function of the request"),
    "scope": (_is_text, "text, such as 'search'"),
    "namespace": (lambda value: isinstance(value, str), "text, such as 'shop'"),
    "cost": (
        _is_cost,
        "a whole number, such numbers by path, as {'/search': 5}, or a function of the request",
    ),
    "deduct_when": (
        _is_function,
        "a function of the response, such as lambda response: response.status == 401",
    ),
    "cost_after": (
        _is_function,
        "a function of request and response that returns a whole number or None",
    ),
    "user": (_is_function, "a function of the request that returns the user's name"),
    "trusted_proxies": (_is_proxies, "a number of proxies, or a list such as ['10.0.0.0/8']"),
    "exempt_paths": (_is_text_list, "a list, such as ['/ping']"),
    "exempt_methods": (_is_text_list, "a list, such as ['HEAD']"),
    "exempt_when": (_is_function, "a function of the request that returns True or False"),
    "block": (lambda value: isinstance(value, bool), "True or False"),
    "template": (_is_function, "a function of the refusal that returns text, a Body or None"),
    "timeout": (_is_duration, "seconds, 0 or more"),
    "strict": (lambda value: isinstance(value, bool), "True or False"),
    "enabled": (lambda value: isinstance(value, bool), "True or False"),
}
"""By setting: validator, and the expected value in words. Other settings are checked where they are
parsed."""


_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "limit": ("request",),
    "cost": ("request",),
    "deduct_when": ("response",),
    "cost_after": ("request", "response"),
    "user": ("request",),
    "exempt_when": ("request",),
    "template": ("refusal",),
}
"""Arguments of the callbacks, by setting."""


def check_settings(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `ConfigError` that lists all unknown settings and all invalid values."""
    raise_problems(setting_problems(given, {name: name for name in known}))


def raise_problems(problems: Sequence[str]) -> None:
    """Raise one `ConfigError` with all problems, if there are any."""
    if problems:
        raise ConfigError("; ".join(problems).replace("?; ", "? "))


def setting_problems(
    given: Mapping[str, object], known: Mapping[str, str], where: str = ""
) -> list[str]:
    """Return the problems of settings: invalid values, then unknown names with similar known names.

    `known` has the setting of each name as users write it, such as `RINGFENCE_LIMIT`.
    """
    problems = [
        problem
        for written, value in given.items()
        if (problem := _value_problem(known.get(written, ""), value))
    ]
    unknown = [name for name in given if name not in known]
    for name in unknown:
        near = get_close_matches(str(name), known, 1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        problems.append(f"unknown setting {name!r}{where}{guess}")
    if unknown:
        problems.append(f"known names are {', '.join(sorted(known))}")
    return problems


def _value_problem(name: str, value: object) -> str:
    """Return what is wrong with the value of a setting; empty for a valid value."""
    is_valid, expected = _CHECKS.get(name, (_is_any, ""))
    if not is_valid(value):
        return f"{name} must be {expected}, got {value!r}"
    if name == "exempt_paths":
        return _path_problem(value)
    if name in _CHECKS and callable(value):
        try:
            require_plain(name, value)
            require_arguments(name, value, *_ARGUMENTS[name])
        except ConfigError as error:
            return str(error)
    return ""


def _path_problem(paths: object) -> str:
    assert isinstance(paths, Collection)
    for path in paths:
        if not path.startswith(("/", "*")):
            return f"exempt_paths must begin with '/', got {path!r}; write {'/' + path!r}"
    return ""
