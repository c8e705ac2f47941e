"""Questions to single nodes."""

import pytest

from ringfence.errors import AccessDenied
from ringfence.wire import (
    AskLeave,
    ErrorCode,
    Refused,
)
from tests.ringfence.client.cluster.town import town


async def test_every_members_counters_can_be_had_and_a_lost_one_has_none(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        t.crash("c")

        stats = await cluster.admin.all_stats()

        assert [(member.name, counters) for member, counters in stats] == [
            ("a", {"checks": 0}),
            ("b", {"checks": 0}),
            ("c", None),
        ]


async def test_a_node_sends_what_it_knows_of_all_members(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        a, b, c = cluster.members
        t.nodes["b"].reported = "odd"
        t.crash("c")

        assert await cluster.admin.peers(a) == [{"name": "a"}]
        assert await cluster.admin.peers(b) is None
        assert await cluster.admin.peers(c) is None
        assert await cluster.admin.members_seen_by(a) == (a, b, c)
        assert await cluster.admin.members_seen_by(c) is None


async def test_a_member_is_asked_to_leave(autojump_clock):
    async with town() as t:
        cluster = await t.joined()
        a, b, c = cluster.members
        t.nodes["b"].farewell = lambda seq: Refused(seq, ErrorCode.NOT_PERMITTED, "no admin")
        t.crash("c")

        assert await cluster.admin.ask_to_leave(a)
        with pytest.raises(AccessDenied, match="no admin"):
            await cluster.admin.ask_to_leave(b)
        assert not await cluster.admin.ask_to_leave(c)
        assert t.nodes["a"].count(AskLeave) == 1
