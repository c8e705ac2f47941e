"""Process of one member, which a supervisor has started.

It writes a line to standard output when it serves, and another one when it begins to leave. When
its standard input closes, the supervisor has ended. Then the member leaves and exits, because
nothing else would stop it.
"""

import os
import sys
from contextlib import suppress

import trio

from node.config.settings import NodeSettings
from node.node import Node
from node.serve import serve

__all__ = ["LEAVING", "UP", "serve_member"]

UP = b"up\n"
LEAVING = b"leaving\n"


async def serve_member(settings: NodeSettings) -> None:
    """Run a node until a signal, or until standard input closes."""
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[Node]) -> None:
            await serve(settings, task_status=task_status)
            nursery.cancel_scope.cancel()

        node = await nursery.start(run)
        _report(UP)

        async def report_leave() -> None:
            await node.asked_to_leave.wait()
            _report(LEAVING)

        nursery.start_soon(report_leave)
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as supervisor:
            while await supervisor.receive_some():
                pass  # The supervisor sends no data.
        node.ask_to_leave()


def _report(line: bytes) -> None:
    """Send a line to the supervisor, unless it has ended."""
    with suppress(OSError):
        os.write(sys.stdout.fileno(), line)
