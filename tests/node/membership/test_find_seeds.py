"""Search for seed nodes by their addresses."""

from types import SimpleNamespace
from typing import Any, cast

import trio

from node.membership.cluster_view import ClusterView
from ringfence.transport.interface import Address

OWN, SEED = ("127.0.0.1", 7101), ("127.0.0.1", 7102)


async def seeds_asked(*, is_cancelled: bool) -> list[Address]:
    asked: list[Address] = []
    gossip = SimpleNamespace(join=asked.extend)
    node = SimpleNamespace(settings=SimpleNamespace(advertise_at=OWN))
    view = cast(ClusterView, SimpleNamespace(_node=node, gossip=gossip))
    with trio.move_on_after(1) as scope:

        async def resolve() -> list[Address]:
            if is_cancelled:
                scope.cancel()
            return [OWN, SEED]

        await ClusterView.find_seeds(view, cast(Any, resolve))
    return asked


async def test_a_node_asks_the_seeds_except_itself(autojump_clock: object) -> None:
    assert await seeds_asked(is_cancelled=False) == [SEED]


async def test_a_node_that_ends_while_it_looks_up_its_seeds_asks_none() -> None:
    assert await seeds_asked(is_cancelled=True) == []
