"""One admin port for the members of a host, over real ports of nodes in memory."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from node.admin import AdminPort, open_port
from node.config.access import Access
from node.supervisor.host_members import Host, HostMember
from node.supervisor.host_port import open_page
from node.supervisor.member_query import MemberResponse, ask_member
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.wire import token_digest
from tests.node.cluster import World, world

HERE = ("127.0.0.1", 0)
SECRET = bytes(range(32))


def port_of(opened: AdminPort) -> int:
    return int(opened.url.rpartition(":")[2])


@asynccontextmanager
async def host() -> AsyncIterator[tuple[World, Host, "Page"]]:
    """Two nodes, each with its port, and the page of both."""
    async with world("a", "b") as made:
        members = []
        for index, name in enumerate(("a", "b")):
            opened = await open_port(made.nodes[name], HERE, None)
            made.nursery.start_soon(opened.run)
            address = ("127.0.0.1", port_of(opened))
            members.append(HostMember(index, name, f"{name}:7101", address, is_up=True))
        found = Host("web", tuple(members))
        page = await open_page(found, HERE, None)
        made.nursery.start_soon(page.run)
        yield made, found, Page(port_of(page))


class Page:
    def __init__(self, port: int) -> None:
        self._ask = partial(ask_member, ("127.0.0.1", port))

    async def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> MemberResponse:
        pairs = {"host": "localhost", **(headers or {})}
        raw = [(name.encode(), value.encode()) for name, value in pairs.items()]
        reported = await self._ask(method.encode(), path.encode(), raw)
        assert reported is not None
        return reported


async def test_metrics_are_those_of_all_members() -> None:
    async with host() as (_, _, page):
        reported = await page.ask("/metrics")

    assert reported.status == 200
    for name in ("a", "b"):
        assert f'ringfence_ready{{member="{name}"}} 1.0'.encode() in reported.body
        assert f'ringfence_process_up{{member="{name}"}} 1.0'.encode() in reported.body


async def test_the_host_is_ready_when_all_are_that_have_not_left() -> None:
    async with host() as (_, found, page):
        whole = await page.ask("/readyz")
        found.members[1].is_up = False
        one_is_down = await page.ask("/readyz")
        found.members[1].has_left = True
        one_has_left = await page.ask("/readyz")
        alive = await page.ask("/healthz")

    assert (whole.status, json.loads(whole.body)["members"]) == (200, ["a", "b"])
    assert (one_is_down.status, json.loads(one_is_down.body)["title"]) == (503, "not ready: b")
    assert (one_has_left.status, json.loads(one_has_left.body)["members"]) == (200, ["a"])
    assert alive.status == 200


async def test_what_all_members_know_is_asked_of_the_first_that_answers() -> None:
    async with host() as (_, found, page):
        first = await page.ask("/v1/members")
        found.members[0].is_up = False
        second = await page.ask("/v1/members")
        shard = await page.ask("/v1/ring?shard=77")
        live = await page.ask("/")
        found.members[1].is_up = False
        no_member = await page.ask("/v1/members")
        metrics = await page.ask("/metrics")

    assert [json.loads(each.body)["asked"] for each in (first, second)] == ["a", "b"]
    assert json.loads(shard.body)["shard"]["number"] == 77
    assert b"content-security-policy" in dict(live.headers)
    assert (no_member.status, metrics.status) == (503, 503)


async def test_members_decide_who_may_look() -> None:
    async with host() as (made, _, page):
        for node in made.nodes.values():
            tokens = {"prometheus": TokenEntry(token_digest(SECRET), frozenset({Scope.OBSERVE}))}
            node.change_access(Access(tokens=tokens))
        stranger = await page.ask("/metrics")
        token = {"authorization": f"Bearer prometheus.{SECRET.hex()}"}
        friend = await page.ask("/metrics", headers=token)
        leave = await page.ask("/v1/leave", "POST", headers=token)

    assert stranger.status == 401
    assert b"www-authenticate" in dict(stranger.headers)
    assert friend.status == 200
    assert leave.status == 403


async def test_all_members_are_asked_to_leave() -> None:
    async with host() as (made, _, page):
        reported = await page.ask("/v1/leave", "POST")

        assert (reported.status, json.loads(reported.body)["members"]) == (202, ["a", "b"])
        with trio.fail_after(30):
            for node in made.nodes.values():
                await node.asked_to_leave.wait()
