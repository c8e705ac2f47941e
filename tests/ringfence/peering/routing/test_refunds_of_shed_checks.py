"""Refunds of checks whose answers an overloaded client reads too late, over a real link."""

import pytest
import trio
from msgspec.structs import replace

from hashring import Member, NodeId, View
from ringfence.limiter import Code
from ringfence.peering.routing import Router, Routes
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.rules import encode_key
from ringfence.wire import Batch, Op, Source
from tests.ringfence.peering.link.linked_world import answer_to, ask, world
from tests.ringfence.peering.routing.cluster import DENY, PLAIN, RULES, HandClock

SLOW = 1.0
_NO_REQUEST = 99_999
RING = View.of([Member(NodeId("n1"))]).ring("dc1")


@pytest.mark.parametrize("is_single", [True, False])
@pytest.mark.parametrize(("rule", "code"), [(DENY, Code.DENIED), (PLAIN, Code.ALLOWED)])
async def test_a_late_answer_refunds_checks_that_were_shed_and_denied(
    autojump_clock, is_single, rule, code
):
    async with world(slow_timeout=SLOW, answer_timeout_margin=0.4) as w:
        router = Router(FailurePolicy(RULES.get, HandClock(), 1000))
        router.routes = Routes(RING, {"n1": w.link})
        w.link.open()
        await trio.sleep(0.1)
        w.peer.reply = _answer_others
        keys = [encode_key(rule, [str(number)]) for number in range(3)]
        decided = await _check(w, router, keys, is_single=is_single)
        assert decided == [(Source.SHED, code)] * 3
        held = [each for each in w.peer.requests if _is_held(each)]

        for request in held:
            w.peer.send(_answer_of_owner(request))
        await trio.sleep(0.1)

        refunds = [each.batch for each in w.peer.requests if each.batch.op is Op.REFUND]
        refunded = [key for batch in refunds for key in batch.keys]
        assert sorted(refunded) == (keys if rule == DENY else [])
        assert len(refunds) <= len(held)


async def _check(w, router, keys, *, is_single):
    """Check keys whose answer is late, while the node answers other checks."""
    decided = []

    async def check(*some):
        if is_single:
            row = await router.ask(some[0], 1, None)
            decided.append((Source(row[7]), row[0]))
        else:
            batch = Batch(Op.CHECK, list(some), [1] * len(some))
            results = await router.decide(batch, lambda row: True)
            decided.extend(zip(results.sources, results.outcomes.codes, strict=True))

    async with trio.open_nursery() as nursery:
        for some in [[key] for key in keys] if is_single else [keys]:
            nursery.start_soon(check, *some)
        for number in range(20):
            await trio.sleep(SLOW / 10)
            ask(w.link, number)
    return decided


def _answer_others(request):
    answer = _answer_of_owner(request)
    return replace(answer, seq=_NO_REQUEST) if _is_held(request) else answer


def _is_held(request):
    return int.from_bytes(request.batch.keys[0][:8], "big") in RULES


def _answer_of_owner(request):
    answer = answer_to(request)
    answer.results.sources = [Source.OWNER] * len(request.batch)
    return answer
