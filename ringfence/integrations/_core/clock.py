"""Clock and sleep functions of the httpx transports, for threads and event loops.

Callers look the functions up at each use, so that tests can replace them by a fake clock.
"""

import time

import anyio

__all__ = ["now", "now_async", "sleep", "sleep_async"]

now = time.monotonic
sleep = time.sleep
now_async = anyio.current_time
sleep_async = anyio.sleep
