"""One member in a process that a supervisor has started.

It says on standard output when it serves. When its standard input ends, the supervisor is gone, and
the member leaves as if it had been told to: nobody else would ever stop it.
"""

import os
import sys

import trio

from node.config.settings import NodeSettings
from node.node import Node
from node.serve import serve

__all__ = ["UP", "serve_member"]

UP = b"up\n"


async def serve_member(settings: NodeSettings) -> None:
    """Run a node until it is told to leave, or nobody is left to tell it."""
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[Node]) -> None:
            await serve(settings, task_status=task_status)
            nursery.cancel_scope.cancel()

        node = await nursery.start(run)
        sys.stdout.buffer.write(UP)
        sys.stdout.buffer.flush()
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as supervisor:
            while await supervisor.receive_some():
                pass  # It has nothing to say.
        node.ask_to_leave()
