"""The time by which transports pause, in threads and in event loops.

Looked up here at each use, so that a fake cluster can put its own clock in their place.
"""

import time

import anyio

__all__ = ["now", "now_async", "sleep", "sleep_async"]

now = time.monotonic
sleep = time.sleep
now_async = anyio.current_time
sleep_async = anyio.sleep
