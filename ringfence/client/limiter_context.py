"""Async context managers that `connect` and `local` return, with clear errors for wrong use."""

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec

from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError

__all__ = ["LimiterContext", "limiter_context"]

_Params = ParamSpec("_Params")


class LimiterContext(AbstractAsyncContextManager[Limiter]):
    """Context manager that opens a limiter for a block. It can be entered several times, one after
    the other."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Limiter]], name: str) -> None:
        self._make = make
        self._name = name
        self._next = make()  # Made now, so that wrong arguments raise in the caller's line.
        self._entered: AbstractAsyncContextManager[Limiter] | None = None

    async def __aenter__(self) -> Limiter:
        if self._entered is not None:
            raise ConfigError(
                f"ringfence.{self._name}(...) must be entered once at a time, got a second block; "
                "share the limiter, or call the function again"
            )
        self._entered, self._next = self._next, self._make()
        try:
            return await self._entered.__aenter__()
        except BaseException:
            self._entered = None
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        entered, self._entered = self._entered, None
        assert entered is not None
        return await entered.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # A type checker rejects these uses.

        def __await__(self):
            raise ConfigError(
                f"ringfence.{self._name}(...) must be entered, got await; write `async with "
                f"ringfence.{self._name}(...) as limiter:`"
            )

        def __enter__(self):
            raise ConfigError(
                f"ringfence.{self._name}(...) must be entered by `async with`, got `with`; in code "
                f"that blocks write `with ringfence.blocking.{self._name}(...) as limiter:`"
            )

        def __exit__(self, *_):
            """Exists only so that `with` without `async` reaches `__enter__`, which raises; never
            called."""

        def __getattr__(self, name):
            raise ConfigError(
                f"ringfence.{self._name}(...) must be entered before its {name!r} is used; write "
                f"`async with ringfence.{self._name}(...) as limiter:`"
            )


def limiter_context(
    function: Callable[_Params, AbstractAsyncContextManager[Limiter]],
) -> Callable[_Params, LimiterContext]:
    """Decorate a generator function so that it returns a `LimiterContext`."""

    @wraps(function)
    def make(*args: _Params.args, **kwargs: _Params.kwargs) -> LimiterContext:
        return LimiterContext(partial(function, *args, **kwargs), function.__name__)

    shown = inspect.signature(function).replace(return_annotation=LimiterContext)
    make.__annotations__ = {**make.__annotations__, "return": LimiterContext}
    make.__signature__ = shown  # type: ignore[attr-defined]  # What editors and pages show.
    return make
