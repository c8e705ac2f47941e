"""Validation of an application's callback functions and of their return values.

Errors name the callback. Without this validation, an invalid key would cause an error of the
limiter. Such an error counts as an outage, and an outage lets requests pass.
"""

from collections.abc import Awaitable, Callable, Iterator
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature

from ringfence.errors import ConfigError

__all__ = [
    "as_text",
    "require_answer",
    "require_arguments",
    "require_arguments_of",
    "require_plain",
    "texts",
]


def require_plain(name: str, function: Callable[..., object]) -> None:
    """Raise `ConfigError` for a callback that is a coroutine function or a generator function."""
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004 - also of instances
        if iscoroutinefunction(each) or isasyncgenfunction(each) or isgeneratorfunction(each):
            raise ConfigError(
                f"{name} {getattr(function, '__qualname__', function)!r} must be a plain function: "
                "its result is never awaited or iterated; write def without async or yield, and "
                "await values before, for example in an outer middleware"
            )


def require_arguments(name: str, function: Callable[..., object], *arguments: str) -> None:
    """Raise `ConfigError` for a callback that cannot be called with these positional arguments.

    A callable without a readable signature, such as one written in C, is accepted.
    """
    try:
        shown = signature(function)
    except (TypeError, ValueError):
        return
    try:
        shown.bind(*arguments)
    except TypeError as error:
        wanted = ", ".join(arguments)
        raise ConfigError(
            f"{name} must be a function that can be called with {wanted or 'no argument'}, got "
            f"{getattr(function, '__qualname__', function)!r} with the parameters {shown}; "
            f"write def {name.split(maxsplit=1)[0]}({wanted}): ..."
        ) from error


def require_arguments_of(
    name: str, function: Callable[..., object], called: Callable[..., object]
) -> None:
    """Raise `ConfigError` for a callback that does not accept the parameters of the function
    `called`."""
    parameters = list(signature(called).parameters.values())
    if any([each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters]):
        return  # The function accepts any arguments.
    try:
        shown = signature(function)
    except (TypeError, ValueError):
        return
    required = [each for each in parameters if each.default is each.empty]
    for given in (parameters, required):  # A call may omit parameters with defaults.
        by_place = [each.name for each in given if each.kind is not each.KEYWORD_ONLY]
        by_name = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
        try:
            shown.bind(*by_place, **by_name)
        except TypeError:
            continue
        return
    raise ConfigError(
        f"{name} must be a function that takes the arguments of {called.__qualname__}"
        f"{signature(called)}, got {getattr(function, '__qualname__', function)!r} with the "
        f"parameters {shown}; give it the same parameters"
    )


def require_answer(name: str, value: object) -> object:
    """Return the result of a callback; raise `ConfigError` if the result is an awaitable."""
    if isinstance(value, Awaitable):
        if hasattr(value, "close"):
            value.close()  # Otherwise Python would warn that it was never awaited.
        raise ConfigError(
            f"{name} must return a value, got {value!r}, which is never awaited; return the value"
        )
    return value


def texts(name: str, function: Callable[..., object]) -> Callable[..., str | None]:
    """Wrap a function that returns an identifier, so that its result is converted to text.

    Raises `ConfigError` if it is not a function.
    """
    if not callable(function):
        raise ConfigError(
            f"{name} must be a function, got {function!r}; give a function that takes the request"
        )
    require_plain(name, function)
    require_arguments(name, function, "request")

    def read(*args: object) -> str | None:
        value = function(*args)
        return value if value is None or type(value) is str else as_text(name, value)

    return read


def as_text(name: str, value: object) -> str:
    """Convert an identifier, such as a number or a UUID, to text.

    Raises `ConfigError` for a value that does not identify anything. An object without its own text
    form shows its memory address, which differs in each request, so the limit would never apply.
    """
    require_answer(name, value)
    kind = type(value)
    is_blank = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    if is_blank or callable(value) or isinstance(value, bytes | bytearray | memoryview | Iterator):
        raise ConfigError(f"{name} must return text, a number, a UUID or None, got {value!r}")
    return str(value)
