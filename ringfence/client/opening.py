"""A limiter about to open: what `connect` and `local` return, with errors for other uses of it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec

from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError

__all__ = ["Opening", "entered"]

_Params = ParamSpec("_Params")


class Opening(AbstractAsyncContextManager[Limiter]):
    """Opens the limiter for the block: `async with ... as limiter`."""

    def __init__(self, inner: AbstractAsyncContextManager[Limiter], name: str) -> None:
        self._inner = inner
        self._name = name

    async def __aenter__(self) -> Limiter:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # A type checker is to refuse these uses.

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
            """Never called."""

        def __getattr__(self, name):
            raise ConfigError(
                f"ringfence.{self._name}(...) must be entered before its {name!r} is used; write "
                f"`async with ringfence.{self._name}(...) as limiter:`"
            )


def entered(
    function: Callable[_Params, AbstractAsyncContextManager[Limiter]],
) -> Callable[_Params, Opening]:
    """Make what a function returns say how it is to be used."""

    @wraps(function)
    def opening(*args: _Params.args, **kwargs: _Params.kwargs) -> Opening:
        return Opening(function(*args, **kwargs), function.__name__)

    return opening
