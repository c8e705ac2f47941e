"""Links of a client: which numbers their requests have, and which leases belong to which node."""

from random import Random
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId
from ringfence.client.cluster import links as links_module
from ringfence.client.cluster.links import Links
from ringfence.client.local_cache.lease_requests import LeaseRequests
from ringfence.peering.link import Link, LinkSettings
from ringfence.transport.interface import Transport
from ringfence.wire import AskMembers, Hello, Role
from tests.ringfence.peering.link.linked_world import Listener, call, world

ONE, OTHER = ("one", 1), ("other", 1)


def links() -> Links:
    hello = Hello(Role.CLIENT, "web", b"", 5)
    transport = cast(Transport, _Transport())
    return Links(*(transport, [ONE], hello, LinkSettings(), Random(1), Listener(), lambda: 1, None))


class _Transport:
    def now(self) -> float:
        return 0.0

    def report(self, error: BaseException) -> None:
        raise error


class _Routes:
    def owner(self, key: bytes) -> NodeId:
        return NodeId("peer")


def test_a_new_link_to_a_node_continues_with_the_numbers_of_the_retired_one() -> None:
    made = links()
    first = made.link_to(ONE)
    seqs = [first._queue.take_seq() for _ in range(3)]
    session, _ = first.numbers

    made.retire_others([])
    second = made.link_to(ONE)

    assert second is not first
    assert seqs == [1, 2, 3]
    assert second.numbers == (session, 4)
    assert second.connection._destination.hello.session == session


def test_links_to_different_nodes_have_different_sessions() -> None:
    made = links()

    sessions = {made.link_to(address).numbers[0] for address in (ONE, OTHER)}

    assert len(sessions) == 2


def test_only_a_bounded_number_of_retired_links_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "_MOST_RETIRED", 1)
    made = links()
    sessions = {address: made.link_to(address).numbers[0] for address in (ONE, OTHER)}
    made.retire_others([])

    assert made.link_to(ONE).numbers[0] != sessions[ONE]
    assert made.link_to(OTHER).numbers[0] == sessions[OTHER]


async def test_the_owner_of_a_key_and_its_link_have_the_same_name(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        call(w.link, AskMembers)
        await trio.sleep(1)  # The link is connected.
        requests = LeaseRequests(cast(Any, None), lambda: cast(Any, _Routes()), lambda *_: None)
        leases = requests.leases

        assert isinstance(w.link, Link)
        assert leases._name_of(w.link) == w.link.name != ""
        assert leases._owner_of(b"key") == "peer"
