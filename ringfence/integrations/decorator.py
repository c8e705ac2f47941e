"""Decorator that limits the calls of a function, sync or async."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import anyio

from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.client.requests.descriptors import Descriptors, checked_seconds
from ringfence.client.slots.acquire import UNDO_WITHIN
from ringfence.errors import ConfigError
from ringfence.http.callback_checks import require_arguments_of, require_plain
from ringfence.integrations._core.limit_target import (
    AdHocTarget,
    LimitTarget,
    RuleTarget,
    TargetCall,
    require_one,
)
from ringfence.integrations._core.over_limit import OverLimit
from ringfence.integrations._core.thread_bridge import ask
from ringfence.limiter import Limit

__all__ = ["OverLimit", "limited"]

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
_Default = TypeVar("_Default")
_Default_co = TypeVar("_Default_co", covariant=True)
_Limiter: TypeAlias = Limiter | BlockingLimiter
_Key: TypeAlias = str | Sequence[str] | Callable[..., object]


class _ReturningDefault(Protocol[_Default_co]):
    """Decorator whose functions return a default when a call is denied."""

    @overload
    def __call__(
        self, function: Callable[_Params, Coroutine[Any, Any, _Result]], /
    ) -> Callable[_Params, Coroutine[Any, Any, _Result | _Default_co]]: ...

    @overload
    def __call__(
        self, function: Callable[_Params, _Result], /
    ) -> Callable[_Params, _Result | _Default_co]: ...


@overload
def limited(
    limiter: _Limiter | Callable[[], _Limiter],
    limit: str | Limit | None = None,
    *,
    key: _Key = (),
    name: str | None = None,
    domain: str | None = None,
    descriptors: Callable[..., Descriptors] | Descriptors | None = None,
    cost: int | Callable[..., int] = 1,
    when_denied: Literal["return"],
    max_wait: float = 10.0,
    default: None = None,
) -> _ReturningDefault[None]: ...


@overload
def limited(
    limiter: _Limiter | Callable[[], _Limiter],
    limit: str | Limit | None = None,
    *,
    key: _Key = (),
    name: str | None = None,
    domain: str | None = None,
    descriptors: Callable[..., Descriptors] | Descriptors | None = None,
    cost: int | Callable[..., int] = 1,
    when_denied: Literal["return"],
    max_wait: float = 10.0,
    default: _Default,
) -> _ReturningDefault[_Default]: ...


@overload
def limited(
    limiter: _Limiter | Callable[[], _Limiter],
    limit: str | Limit | None = None,
    *,
    key: _Key = (),
    name: str | None = None,
    domain: str | None = None,
    descriptors: Callable[..., Descriptors] | Descriptors | None = None,
    cost: int | Callable[..., int] = 1,
    when_denied: Literal["raise", "wait"] = "raise",
    max_wait: float = 10.0,
    default: None = None,
) -> Callable[[Callable[_Params, _Result]], Callable[_Params, _Result]]: ...


def limited(
    limiter: _Limiter | Callable[[], _Limiter],
    limit: str | Limit | None = None,
    *,
    key: _Key = (),
    name: str | None = None,
    domain: str | None = None,
    descriptors: Callable[..., Descriptors] | Descriptors | None = None,
    cost: int | Callable[..., int] = 1,
    when_denied: Literal["raise", "wait", "return"] = "raise",
    max_wait: float = 10.0,
    default: object = None,
) -> Callable[[Callable[_Params, Any]], Callable[_Params, Any]]:
    """Check before each call of the function, and call it only when the check is allowed.

    A call spends units of `limit`, an ad-hoc limit, per `key`; or of the rules of `domain` that
    `descriptors` match. `key` is the name of a parameter, several names, or a function of the
    call's arguments that returns a value or a tuple of values. Without it all calls share one
    counter. The counter has the full name of the function, or `name`, so that several functions can
    share one. `descriptors` and `cost` may be functions of the call's arguments.

    The slots of concurrency limits are held until the function returns.

    When a call is denied, `raise` raises `OverLimit` and `return` returns `default`. `wait` waits
    until the call is allowed, and raises when that would take more than `max_wait` seconds.

    `limiter` may be a function that returns a limiter that is opened later. A plain function needs
    a limiter of `ringfence.blocking`; an `async def` takes either. Raises `ConfigError` for invalid
    values, most of them when the function is decorated.
    """
    _require_limiter(limiter)
    require_one(limit, domain, descriptors)
    checked_seconds("max_wait", max_wait)
    for setting, value in (("key", key), ("descriptors", descriptors), ("cost", cost)):
        if callable(value):
            require_plain(setting, value)
    if when_denied not in ("raise", "wait", "return"):
        raise ConfigError(f"when_denied must be raise, wait or return, got {when_denied!r}")

    def decorate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        _require_function(function)
        full_name = name or _full_name(function)
        for setting, value in (("key", key), ("descriptors", descriptors), ("cost", cost)):
            if callable(value):
                require_arguments_of(setting, value, function)
        key_of = _key_reader(key, function)

        def budget(*args: _Params.args, **kwargs: _Params.kwargs) -> LimitTarget:
            spent = cost(*args, **kwargs) if callable(cost) else cost
            if limit is not None:
                return AdHocTarget(limit, (full_name, *key_of(*args, **kwargs)), spent)
            said = descriptors(*args, **kwargs) if callable(descriptors) else descriptors
            assert domain is not None
            assert said is not None
            return RuleTarget(domain, said, spent)

        def question(*args: _Params.args, **kwargs: _Params.kwargs) -> TargetCall:
            asked = budget(*args, **kwargs)
            if when_denied == "wait":
                return partial(asked.acquire, max_wait=max_wait)
            return asked.check

        def refused(decision: Decision) -> _Result:
            if when_denied == "return":
                return cast(_Result, default)
            raise OverLimit(f"a call of {full_name}", decision)

        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(
                f"{full_name} is a generator, which runs only after the call that is limited; "
                "limit the function that iterates over it"
            )
        if inspect.iscoroutinefunction(function):
            run = cast(Callable[_Params, Awaitable[object]], function)

            @wraps(function)
            async def call_async(*args: _Params.args, **kwargs: _Params.kwargs) -> object:
                given = _given(limiter)
                decision = await ask(given, question(*args, **kwargs))
                if not decision:
                    return refused(decision)
                if decision.slots is None:
                    return await run(*args, **kwargs)
                async with _held(given, decision):
                    return await run(*args, **kwargs)

            return cast(Callable[_Params, _Result], call_async)
        _require_blocking(limiter, full_name)

        @wraps(function)
        def call(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            given = _require_blocking(_given(limiter), full_name)
            decision = given.run(question(*args, **kwargs))
            if not decision:
                return refused(decision)
            if decision.slots is None:
                return function(*args, **kwargs)
            try:
                given.keep(decision)
                return function(*args, **kwargs)
            finally:
                given.release(decision)

        return call

    return decorate


@asynccontextmanager
async def _held(limiter: _Limiter, decision: Decision) -> AsyncIterator[None]:
    """Keep the slots of a decision while the block runs, and release them at its end."""

    async def keep(inner: Limiter) -> None:
        inner.keep(decision)

    async def release(inner: Limiter) -> None:
        await inner.release(decision)

    try:
        await ask(limiter, keep)
        yield
    finally:
        with anyio.move_on_after(UNDO_WITHIN, shield=True):
            await ask(limiter, release)


def _require_function(function: object) -> None:
    """Raise `ConfigError` for a value that the decorator cannot wrap."""
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise ConfigError(
            f"@limited must decorate a function, got a {kind}; write @{kind} above @limited"
        )
    if not callable(function):
        raise ConfigError(
            f"@limited must decorate a function, got {function!r}; write it above def"
        )


def _full_name(function: Callable[..., object]) -> str:
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise ConfigError(
            f"{function!r} has no name, so give its counter one: @limited(..., name='send')"
        ) from None


def _given(limiter: _Limiter | Callable[[], _Limiter]) -> _Limiter:
    if isinstance(limiter, Limiter | BlockingLimiter):
        return limiter
    found = limiter()
    if not isinstance(found, Limiter | BlockingLimiter):
        raise ConfigError(f"{limiter!r} must return a limiter, got {found!r}")
    return found


def _require_limiter(limiter: object) -> None:
    """Raise `ConfigError` for a value that is neither a limiter nor a function that returns one."""
    if isinstance(limiter, Limiter | BlockingLimiter):
        return
    if not callable(limiter):
        raise ConfigError(
            f"limiter must be a limiter or a function that returns one, got {limiter!r}; give for "
            "instance ringfence.blocking.connect('ringfence://...')"
        )
    require_plain("limiter", limiter)


def _require_blocking(limiter: object, name: str) -> BlockingLimiter:
    """Raise `ConfigError` for an async limiter, which a sync function cannot await."""
    if isinstance(limiter, Limiter):
        raise ConfigError(
            f"{name} is a plain function, which cannot await; give it a limiter of "
            "ringfence.blocking, or make it async def"
        )
    return cast(BlockingLimiter, limiter)


def _key_reader(key: _Key, function: Callable[..., object]) -> Callable[..., tuple[str, ...]]:
    """Create a function that computes the key from the arguments of a call."""
    if callable(key):
        return lambda *args, **kwargs: _as_texts(key(*args, **kwargs))
    names = (key,) if isinstance(key, str) else tuple(key)
    signature = inspect.signature(function)
    for each in names:
        if each not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            owner = getattr(function, "__qualname__", function)
            raise ConfigError(f"key must be a parameter of {owner} ({known}), got {each!r}")

    def read(*args: object, **kwargs: object) -> tuple[str, ...]:
        if not names:
            return ()
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{getattr(function, '__qualname__', function)}() {error}") from None
        bound.apply_defaults()
        return tuple(str(bound.arguments[each]) for each in names)

    return read


def _as_texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
