"""Fixture of tests of the request handler."""

from collections.abc import AsyncIterator

import pytest
import trio

from tests.node.requests.handling.handling_host import HandlingHost


@pytest.fixture
async def host() -> AsyncIterator[HandlingHost]:
    """Return a node of three that handles requests; other tasks of its handler run, too."""
    async with trio.open_nursery() as nursery:
        made = HandlingHost(nursery)
        nursery.start_soon(made.handler.run)
        await trio.lowlevel.checkpoint()
        yield made
        nursery.cancel_scope.cancel()
