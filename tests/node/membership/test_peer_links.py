"""Links of a node to the other members, and their end when members change."""

from collections.abc import Iterable
from random import Random
from typing import Any, cast

import pytest

from gossip import Membership, Record, Status
from hashring import NodeId
from node.membership import peer_links
from node.membership.peer_links import PeerLinks
from ringfence.errors import AccessDenied, PeerUnavailable
from ringfence.peering.link import LinkSettings
from ringfence.wire import Hello, Ping, Pong, Role
from tests.node.membership.fake_transport import BOOT, FakeTransport

ME, B, C = map(NodeId, ("me", "b", "c"))


class FakeLink:
    """Link that records what it was created for, and how it ended."""

    def __init__(
        self,
        transport: object,
        address: Any,
        hello: Hello,
        settings: LinkSettings,
        *rest: object,
        prove: object,
        node: str,
    ) -> None:
        self.address, self.hello, self.settings, self.node = address, hello, settings, node
        self.calls: list[str] = []
        self.is_ready = False
        self.refusal: Exception | None = None

    def open(self) -> bool:
        is_idle = "open" not in self.calls
        if is_idle:
            self.calls.append("open")
        return is_idle

    def retry(self) -> None:
        self.calls.append("retry")

    def close(self) -> None:
        self.calls.append("close")

    def retire(self) -> None:
        self.calls.append("retire")


class FakeMembership:
    def __init__(self) -> None:
        self.records: dict[str, Record] = {}


@pytest.fixture(autouse=True)
def _links_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_links, "Link", FakeLink)


def record(
    name: str, status: Status = Status.ALIVE, *, host: str = "", port: int = 1, generation: int = 1
) -> Record:
    return Record(name, host or f"host-{name}", port, "dc1", "", 1.0, generation, 0, status)


def links_to(*records: Record, transport: FakeTransport | None = None) -> PeerLinks:
    membership = FakeMembership()
    membership.records = by_name(records)
    made = PeerLinks(
        cast(Membership, membership),
        Hello(Role.NODE, "me", b"", 1),
        cast(Any, None),
        LinkSettings(answer_timeout=0.3),
        Random(1),
    )
    made.start(*cast(Any, (transport or FakeTransport(), None, None)))
    made.update(membership.records)
    return made


def by_name(records: Iterable[Record]) -> dict[str, Record]:
    return {each.name: each for each in records}


def link(made: PeerLinks, name: NodeId) -> FakeLink:
    return cast(FakeLink, made.link(name))


def test_a_member_has_one_link_for_checks_and_one_for_transfers() -> None:
    made = links_to(record("b"), record("me"))
    checks, transfers = link(made, B), cast(FakeLink, made.bulk(B))

    assert (link(made, B), cast(FakeLink, made.bulk(B))) == (checks, transfers)
    assert checks is not transfers
    assert (checks.address, checks.node) == (("host-b", 1), "b")
    assert (checks.settings.answer_timeout, transfers.settings.answer_timeout) == (0.3, 2.0)
    assert checks.hello.session != transfers.hello.session
    assert checks.calls == transfers.calls == []


@pytest.mark.parametrize("status", [Status.DEAD, Status.LEFT])
def test_this_node_and_members_that_are_gone_or_unknown_have_no_link(status: Status) -> None:
    made = links_to(record("me"), record("b", status))

    assert [made.link(name) for name in (ME, B, C)] == [None] * 3
    assert [made.bulk(name) for name in (ME, B, C)] == [None] * 3


@pytest.mark.parametrize("status", [Status.ALIVE, Status.SUSPECT, Status.LEAVING])
def test_a_member_that_is_not_gone_keeps_its_links(status: Status) -> None:
    made = links_to(record("b"))
    before, bulk = link(made, B), made.bulk(B)

    made.update(by_name([record("b", status)]))

    assert (made.link(B), made.bulk(B)) == (before, bulk)
    assert before.calls == []


@pytest.mark.parametrize(
    ("after", "calls", "has_new_link"),
    [
        ([record("b", Status.DEAD)], ["close"], False),
        ([], ["close"], False),
        ([record("b", Status.LEFT)], ["retire"], False),
        ([record("b", generation=2)], ["retire"], True),
        ([record("b", host="elsewhere")], ["retire"], True),
        ([record("b", port=2)], ["retire"], True),
    ],
)
def test_links_close_when_their_member_leaves_or_changes_its_address(
    after: list[Record], calls: list[str], *, has_new_link: bool
) -> None:
    """A link to a member that left or moved still receives the answers in flight."""
    made = links_to(record("b"))
    before, bulk = link(made, B), cast(FakeLink, made.bulk(B))

    made.update(by_name(after))

    assert before.calls == bulk.calls == calls
    assert (made.link(B) is not None) is has_new_link
    assert made.link(B) is not before


def test_a_node_connects_to_joining_members_early() -> None:
    made = links_to(record("b", Status.JOINING), record("c"))

    assert link(made, B).calls == ["open"]
    assert link(made, C).calls == []


def test_links_that_are_opened_in_advance_are_opened_one_after_the_other() -> None:
    transport = FakeTransport()
    made = links_to(record("b"), record("c"), record("d"), record("gone"), transport=transport)
    link(made, B).open()  # This link is in use.

    made.connect_early([NodeId(name) for name in ("c", "b", "unknown", "gone", "me", "d")])
    made.update(by_name([record("b"), record("c"), record("d"), record("gone", Status.DEAD)]))
    opened = []
    while any(not timer.is_cancelled for timer in transport.timers):
        transport.run_timer()
        ready = [name for name in (B, C, NodeId("d")) if link(made, name).calls]
        opened.append((round(transport.seconds - BOOT, 9), ready))

    assert opened == [(0.1, ["b", "c"]), (0.2, ["b", "c", "d"])]


def test_a_change_of_the_ring_replaces_the_members_that_wait_for_an_early_link() -> None:
    transport = FakeTransport()
    made = links_to(record("b"), record("c"), record("d"), transport=transport)

    made.connect_early([B, C])
    made.connect_early([NodeId("d")])
    transport.run_timer()
    assert [link(made, name).calls for name in (B, C, NodeId("d"))] == [[], [], ["open"]]
    assert transport.timers == []
    made.connect_early([B])
    made.close()
    transport.run_timer()

    assert link(made, B).calls == ["close"]


def test_a_member_that_is_alive_is_tried_again_on_all_its_links() -> None:
    made = links_to(record("b"), record("c"))
    of_b = [link(made, B), cast(FakeLink, made.bulk(B))]

    for name in (B, C, NodeId("unknown")):
        made.retry(name)

    assert [each.calls for each in of_b] == [["retry"]] * 2
    assert link(made, C).calls == []


@pytest.mark.parametrize(
    ("listed", "is_ready", "calls"),
    [
        (record("b", Status.JOINING), False, 1),
        (record("b", Status.JOINING), True, 0),
        (record("b", Status.ALIVE), False, 0),
        (record("b", Status.DEAD), False, 0),
        (record("c", Status.JOINING), False, 0),
    ],
)
async def test_a_joining_member_is_connected_before_it_receives_shards(
    monkeypatch: pytest.MonkeyPatch, listed: Record, *, is_ready: bool, calls: int
) -> None:
    called: list[object] = []

    async def call(link: FakeLink, request: type, reply: type) -> None:
        called.append((link, request, reply))

    monkeypatch.setattr(peer_links, "call", call)
    made = links_to(listed)
    found = made.link(B)
    if found is not None:
        cast(Any, found).is_ready = is_ready

    await made.connect_joining(B)

    assert called == [(found, Ping, Pong)] * calls


@pytest.mark.parametrize(
    ("status", "is_suspect"),
    [
        (Status.JOINING, False),
        (Status.ALIVE, False),
        (Status.LEAVING, False),
        (Status.SUSPECT, True),
        (Status.DEAD, True),
        (Status.LEFT, True),
    ],
)
def test_suspect_and_unknown_members_are_suspect(status: Status, *, is_suspect: bool) -> None:
    made = links_to(record("b", status))

    assert made.is_suspect(B) is is_suspect
    assert made.is_suspect(C)


def test_an_address_has_the_link_of_its_member_or_one_of_its_own() -> None:
    made = links_to(record("b"))
    of_member = link(made, B)

    assert made.at(("host-b", 1)) is of_member
    seed = made.at(("seed", 1))
    assert made.at(("seed", 1)) is seed
    assert (cast(FakeLink, seed).address, cast(FakeLink, seed).node) == (("seed", 1), "")


def test_a_node_has_links_to_at_most_32_addresses_without_members() -> None:
    made = links_to()
    seeds = [cast(FakeLink, made.at((f"seed{number}", 1))) for number in range(33)]

    assert [each.calls for each in seeds] == [["retire"]] + [[]] * 32
    assert made.at(("seed1", 1)) is seeds[1]
    assert made.at(("seed0", 1)) is not seeds[0]


def test_a_ready_link_to_the_same_address_is_found_among_all_links() -> None:
    made = links_to(record("b"))
    checks, bulk = link(made, B), cast(FakeLink, made.bulk(B))
    address = checks.address
    assert not made.has_link_to(address, other_than=cast(Any, bulk))

    checks.is_ready = True

    assert made.has_link_to(address, other_than=cast(Any, bulk))
    assert not made.has_link_to(address, other_than=cast(Any, checks))
    assert not made.has_link_to(("other", 1), other_than=cast(Any, bulk))
    seed = cast(FakeLink, made.at(("seed", 1)))
    seed.is_ready = True
    assert made.has_link_to(("seed", 1), other_than=cast(Any, bulk))


def test_only_a_rejected_key_or_certificate_is_a_refusal() -> None:
    made = links_to()
    cast(FakeLink, made.at(("one", 1))).refusal = PeerUnavailable("no answer")
    assert made.refusal is None

    error = cast(FakeLink, made.at(("two", 1))).refusal = AccessDenied("wrong key")

    assert made.refusal is error


def test_all_links_close_with_the_node() -> None:
    made = links_to(record("b"))
    links = [link(made, B), made.bulk(B), made.at(("seed", 1))]

    made.close()

    assert [cast(FakeLink, each).calls for each in links] == [["close"]] * 3
