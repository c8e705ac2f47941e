"""Links of a client: sequence numbers of their requests, and names of their nodes for leases."""

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
from ringfence.wire import AskMembers, Hello, MemberRow, Role
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

    made.retire_others([])
    second = made.link_to(ONE)

    assert second is not first
    assert seqs == [1, 2, 3]
    assert (second.session, second.next_seq) == (first.session, 4)
    assert second.connection._destination.hello.session == first.session


def test_a_node_is_recognized_by_its_name_if_its_seed_has_another_address() -> None:
    made = links()
    first = made.link_to(ONE)
    first.connection.name = "node"
    made.retire_others([])
    row = MemberRow("node", "elsewhere", 1, "dc1", "z1", 1.0, "alive")

    assert made.link_of(row).session == first.session


def test_a_retired_link_is_closed_when_a_new_one_continues_with_its_session() -> None:
    made = links()
    first = made.link_to(ONE)
    made.retire_others([])
    first.connection.is_closed = False  # The link then seems to wait for answers.

    second = made.link_to(ONE)

    assert second.session == first.session
    assert first.connection.is_closed


def test_links_to_different_nodes_have_different_sessions() -> None:
    made = links()

    assert made.link_to(ONE).session != made.link_to(OTHER).session


def test_only_a_bounded_number_of_retired_links_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "_MOST_RETIRED", 1)
    made = links()
    sessions = {address: made.link_to(address).session for address in (ONE, OTHER)}
    made.retire_others([])

    assert made.link_to(ONE).session != sessions[ONE]
    assert made.link_to(OTHER).session == sessions[OTHER]


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
