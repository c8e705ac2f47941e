"""Exceptions of signal handlers, which Python raises in the main thread between any two steps.

Such an exception may come out of code that catches all errors of its callers. It must reach the
code of the application, and what it interrupted may be incomplete.
"""

import inspect
import signal
import threading
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType

__all__ = ["is_interrupt", "suppress_system_errors"]


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception was raised by a signal handler, or ends the program.

    `KeyboardInterrupt`, `SystemExit` and the like count in any thread.
    """
    if not isinstance(error, Exception):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    handlers.discard(None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def suppress_system_errors() -> AbstractContextManager[None, bool]:
    """Suppress errors of system calls in a block, but no `OSError` of a signal handler, such as a
    `TimeoutError`: it has no `errno`."""
    return _SUPPRESSION


class _Suppression(AbstractContextManager[None, bool]):
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return isinstance(error, OSError) and error.errno is not None


_SUPPRESSION = _Suppression()


def _code_of(handler: object) -> object:
    """Return the code of a signal handler; None for handlers that are not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not inspect.isroutine(handler):
        handler = getattr(handler, "__call__", None)  # noqa: B004 - an object as a handler.
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
