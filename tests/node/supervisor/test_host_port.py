"""One admin port for the members of a host, which run in memory and have real admin ports."""

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

ANY_LOCAL_PORT = ("127.0.0.1", 0)
SECRET = bytes(range(32))


def port_of(admin_port: AdminPort) -> int:
    return int(admin_port.url.rpartition(":")[2])


@asynccontextmanager
async def host() -> AsyncIterator[tuple[World, Host, "HostPort"]]:
    """Start two nodes, each with an admin port, and the common admin port of their host."""
    async with world("a", "b") as cluster:
        members = []
        for index, name in enumerate(("a", "b")):
            admin_port = await open_port(cluster.nodes[name], ANY_LOCAL_PORT, None)
            cluster.nursery.start_soon(admin_port.run)
            address = ("127.0.0.1", port_of(admin_port))
            members.append(HostMember(index, name, f"{name}:7101", address, is_up=True))
        web_host = Host("web", tuple(members))
        host_port = await open_page(web_host, ANY_LOCAL_PORT, None)
        cluster.nursery.start_soon(host_port.run)
        yield cluster, web_host, HostPort(port_of(host_port))


class HostPort:
    def __init__(self, port: int) -> None:
        self._ask = partial(ask_member, ("127.0.0.1", port))

    async def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> MemberResponse:
        pairs = {"host": "localhost", **(headers or {})}
        raw = [(name.encode(), value.encode()) for name, value in pairs.items()]
        response = await self._ask(method.encode(), path.encode(), raw)
        assert response is not None
        return response


async def test_the_metrics_of_a_host_are_those_of_all_its_members() -> None:
    async with host() as (_, _, host_port):
        response = await host_port.ask("/metrics")

    assert response.status == 200
    for name in ("a", "b"):
        assert f'ringfence_ready{{member="{name}"}} 1.0'.encode() in response.body
        assert f'ringfence_process_up{{member="{name}"}} 1.0'.encode() in response.body


async def test_the_host_is_ready_when_all_members_that_have_not_left_are_ready() -> None:
    async with host() as (_, web_host, host_port):
        all_up = await host_port.ask("/readyz")
        web_host.members[1].is_up = False
        one_is_down = await host_port.ask("/readyz")
        web_host.members[1].has_left = True
        one_has_left = await host_port.ask("/readyz")
        health = await host_port.ask("/healthz")

    assert (all_up.status, json.loads(all_up.body)["members"]) == (200, ["a", "b"])
    assert (one_is_down.status, json.loads(one_is_down.body)["title"]) == (503, "not ready: b")
    assert (one_has_left.status, json.loads(one_has_left.body)["members"]) == (200, ["a"])
    assert health.status == 200


async def test_a_request_for_common_state_goes_to_the_first_member_that_responds() -> None:
    async with host() as (_, web_host, host_port):
        first = await host_port.ask("/v1/members")
        web_host.members[0].is_up = False
        second = await host_port.ask("/v1/members")
        shard = await host_port.ask("/v1/ring?shard=77")
        dashboard = await host_port.ask("/")
        web_host.members[1].is_up = False
        no_member = await host_port.ask("/v1/members")
        metrics = await host_port.ask("/metrics")

    assert [json.loads(each.body)["asked"] for each in (first, second)] == ["a", "b"]
    assert json.loads(shard.body)["shard"]["number"] == 77
    assert b"content-security-policy" in dict(dashboard.headers)
    assert (no_member.status, metrics.status) == (503, 503)


async def test_the_members_check_the_token_of_a_request() -> None:
    async with host() as (cluster, _, host_port):
        for node in cluster.nodes.values():
            tokens = {"prometheus": TokenEntry(token_digest(SECRET), frozenset({Scope.OBSERVE}))}
            node.change_access(Access(tokens=tokens))
        anonymous = await host_port.ask("/metrics")
        token = {"authorization": f"Bearer prometheus.{SECRET.hex()}"}
        authorized = await host_port.ask("/metrics", headers=token)
        leave = await host_port.ask("/v1/leave", "POST", headers=token)

    assert anonymous.status == 401
    assert b"www-authenticate" in dict(anonymous.headers)
    assert authorized.status == 200
    assert leave.status == 403


async def test_a_leave_request_to_the_host_makes_all_members_leave() -> None:
    async with host() as (cluster, _, host_port):
        response = await host_port.ask("/v1/leave", "POST")

        assert (response.status, json.loads(response.body)["members"]) == (202, ["a", "b"])
        with trio.fail_after(30):
            for node in cluster.nodes.values():
                await node.asked_to_leave.wait()
