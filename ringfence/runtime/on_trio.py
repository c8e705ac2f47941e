"""Access to functions of trio, without importing trio into applications on asyncio.

Trio can only run if the application has imported it. So `in_trio_run` looks for the loaded module
and stores its functions here. The other names of this module may be used only after `in_trio_run`
has returned True.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio
    from trio.lowlevel import (
        Abort,
        RaiseCancelT,
        Task,
        current_task,
        current_trio_token,
        in_trio_run,
        reschedule,
        wait_task_rescheduled,
    )
else:
    Abort = RaiseCancelT = Task = object

    def in_trio_run():
        """Return whether this thread is running trio."""
        lowlevel = sys.modules.get("trio.lowlevel")
        if lowlevel is None or not all(
            hasattr(lowlevel, name) for name in __all__ if name != "trio"
        ):
            return False
        # From now on this module has the functions themselves, and calls cost nothing extra.
        globals().update(
            {name: getattr(lowlevel, name) for name in __all__ if name != "trio"},
            trio=sys.modules["trio"],
        )
        return lowlevel.in_trio_run()


__all__ = [
    "Abort",
    "RaiseCancelT",
    "Task",
    "current_task",
    "current_trio_token",
    "in_trio_run",
    "reschedule",
    "trio",
    "wait_task_rescheduled",
]
