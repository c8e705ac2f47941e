"""Servers of benchmarks that run in a separate process, so that they use another processor core."""

import multiprocessing
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

__all__ = ["ServerProcess"]

_Address = TypeVar("_Address")


class ServerProcess(Generic[_Address]):
    """Context manager that runs a server function in a separate process."""

    address: _Address
    """Value that the server has sent, such as its port; it is set inside the `with` block."""

    def __init__(self, serve: Callable[..., None], *args: object) -> None:
        """`serve` is a function of a module. It receives a pipe end and `args`, sends its address
        into the pipe, and then serves until the process is terminated."""
        self._serve = serve
        self._args = args

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(theirs, *self._args), daemon=True)
        self._process.start()
        theirs.close()
        self.address = ours.recv()
        ours.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.join()
