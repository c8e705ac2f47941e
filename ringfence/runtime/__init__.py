"""Runtime of nodes and clients: trio, asyncio, the caller's threads, or a simulation.

Nodes and clients call the functions of this package instead of those of trio or anyio. Each call
uses the runtime in which the calling task runs.
"""

from ringfence.runtime.dispatch import (
    TASK_STATUS_IGNORED,
    Event,
    Signal,
    cancelled_error,
    checkpoint,
    clock,
    current_runtime,
    current_time,
    in_trio_run,
    move_on_after,
    new_future,
    open_task_group,
    open_timed_calls,
    resolve_future,
    run_on,
    sleep,
    swap_runtime,
    thread_safe_caller,
)
from ringfence.runtime.interface import (
    CancelScope,
    Future,
    Runtime,
    TaskGroup,
    TaskStatus,
    TimedCall,
    TimedCalls,
)

__all__ = [
    "TASK_STATUS_IGNORED",
    "CancelScope",
    "Event",
    "Future",
    "Runtime",
    "Signal",
    "TaskGroup",
    "TaskStatus",
    "TimedCall",
    "TimedCalls",
    "cancelled_error",
    "checkpoint",
    "clock",
    "current_runtime",
    "current_time",
    "in_trio_run",
    "move_on_after",
    "new_future",
    "open_task_group",
    "open_timed_calls",
    "resolve_future",
    "run_on",
    "sleep",
    "swap_runtime",
    "thread_safe_caller",
]
