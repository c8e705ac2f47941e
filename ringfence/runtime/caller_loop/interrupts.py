"""Exceptions of signal handlers, which Python raises in the main thread between any two steps.

Such an exception may come out of code that catches all errors of its callers. It must reach the
code of the application, and what it interrupted may be incomplete.
"""

import inspect
import signal
import threading
from functools import partial

__all__ = ["is_interrupt"]


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


def _code_of(handler: object) -> object:
    """Return the code of a signal handler; None for handlers that are not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not inspect.isroutine(handler):
        handler = getattr(handler, "__call__", None)  # noqa: B004 - an object as a handler.
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
