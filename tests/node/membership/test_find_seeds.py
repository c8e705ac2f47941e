"""Search for seed nodes by their addresses."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from node.membership.cluster_view import ClusterView
from ringfence.transport.interface import Address

OWN, SEED = ("127.0.0.1", 7101), ("127.0.0.1", 7102)


async def seeds_asked(
    *found: Address, seconds: float = 1, is_cancelled: bool = False
) -> list[list[Address]]:
    """Return the seeds of each call of `join`."""
    asked: list[list[Address]] = []
    gossip = SimpleNamespace(join=asked.append)
    node = SimpleNamespace(settings=SimpleNamespace(advertise_at=OWN))
    view = cast(ClusterView, SimpleNamespace(_node=node, gossip=gossip))
    with trio.move_on_after(seconds) as scope:

        async def resolve() -> list[Address]:
            if is_cancelled:
                scope.cancel()
            return [*found]

        await ClusterView.find_seeds(view, cast(Any, resolve))
    return asked


async def test_a_node_asks_the_seeds_except_itself(autojump_clock: object) -> None:
    assert await seeds_asked(OWN, SEED) == [[SEED]]


@pytest.mark.parametrize("found", [(), (OWN,)])
async def test_a_node_without_other_seeds_asks_none(
    found: tuple[Address, ...], autojump_clock: object
) -> None:
    assert await seeds_asked(*found) == []


async def test_seeds_are_looked_up_every_30_seconds(autojump_clock: object) -> None:
    assert await seeds_asked(SEED, seconds=29.9) == [[SEED]]
    assert await seeds_asked(SEED, seconds=60.1) == [[SEED]] * 3


async def test_a_node_that_ends_while_it_looks_up_its_seeds_asks_none() -> None:
    assert await seeds_asked(OWN, SEED, is_cancelled=True) == []
