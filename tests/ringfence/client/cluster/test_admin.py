"""Administrative requests to single nodes."""

import pytest

from ringfence.errors import AccessDenied
from ringfence.wire import (
    AskLeave,
    ErrorCode,
    Refused,
)
from tests.ringfence.client.cluster.fake_cluster import fake_cluster


async def test_counters_of_each_reachable_member_are_returned(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.joined()
        fake.crash("c")

        stats = await cluster.admin.all_stats()

        assert [(member.name, counters) for member, counters in stats] == [
            ("a", {"checks": 0}),
            ("b", {"checks": 0}),
            ("c", None),
        ]


async def test_a_node_sends_its_list_of_members(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.joined()
        a, b, c = cluster.members
        fake.nodes["b"].reported = "odd"
        fake.crash("c")

        assert await cluster.admin.peers(a) == [{"name": "a"}]
        assert await cluster.admin.peers(b) is None
        assert await cluster.admin.peers(c) is None
        assert await cluster.admin.members_seen_by(a) == (a, b, c)
        assert await cluster.admin.members_seen_by(c) is None


async def test_a_member_is_asked_to_leave(autojump_clock):
    async with fake_cluster() as fake:
        cluster = await fake.joined()
        a, b, c = cluster.members
        fake.nodes["b"].reply_to_leave = lambda seq: Refused(
            seq, ErrorCode.NOT_PERMITTED, "no admin"
        )
        fake.crash("c")

        assert await cluster.admin.ask_to_leave(a)
        with pytest.raises(AccessDenied, match="no admin"):
            await cluster.admin.ask_to_leave(b)
        assert not await cluster.admin.ask_to_leave(c)
        assert fake.nodes["a"].count(AskLeave) == 1
