"""Check that an async client is used in the thread of its event loop."""

from threading import get_ident

from ringfence import runtime
from ringfence.errors import ConfigError

__all__ = ["OwnThread"]


class OwnThread:
    """Thread in which a client was made. A blocking client may be used in every thread."""

    def __init__(self) -> None:
        # A blocking client sets a runtime, which is run by the threads that make calls.
        self._thread = get_ident() if runtime.current_runtime() is None else None

    def require(self) -> None:
        """Raise `ConfigError` in another thread: its event loop would wait forever, because the
        loop of the client wakes it only by chance."""
        if self._thread is not None and get_ident() != self._thread:
            raise ConfigError(
                "an async limiter must be used in the thread of the event loop that opened it, got "
                "a call in another thread; open a limiter in each loop, or use ringfence.blocking"
            )
