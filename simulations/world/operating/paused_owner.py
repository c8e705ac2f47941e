"""Pause of a node at the end of a run, while clients spend, refund and reset units of its keys.

The standby decides meanwhile. After the pause, the counters of the owner must have exactly the
units that were admitted and not refunded. Units that clients borrowed and did not spend must not
count.
"""

from random import Random

from ringfence import runtime
from ringfence.wire import Source
from simulations.world.hosts import Client
from simulations.world.named_rules import DOMAIN
from simulations.world.operating.spending import Spending, owned_request, used_units
from simulations.world.world import World

__all__ = ["wrong_after_pause"]

_COST, _REFUNDED = 60, 40
_BORROWED_S = 0.6
"""Seconds of checks until the pause, in which counters also reach the standby."""
_NOTICED_S = 1.2
"""Seconds of the pause until a client that waits for the owner regards it as lost."""
_PAUSE_S = 1.7
"""Seconds of the pause: too short for a member to be declared dead."""
_MERGED_S = 1.0
"""Seconds of checks after the pause."""
_REPORTED_S = 8.0
"""Seconds until clients have reported all leases whose owner did not answer."""


async def wrong_after_pause(
    world: World, borrower: Client, operator: Client, random: Random, *, may_refund: bool
) -> list[str]:
    """Suspend a node while clients use its keys; return what was wrong afterwards.

    `may_refund` means that the operator may refund units that another node has charged.
    """
    hosts = world.hosts
    here = sorted(hosts.in_ring().intersection(hosts.in_datacenter(borrower.datacenter)))
    if len(here) < 2:
        return []
    name, limiter = random.choice(here), operator.limiter
    leased, refunded, reset = (
        owned_request(world, name, prefix) for prefix in ("leased", "refunded", "reset")
    )
    for request in (refunded, reset):
        if (await limiter.check(DOMAIN, request, _COST)).source is not Source.OWNER:
            return []  # The network has just lost something.
    spending = Spending(borrower.limiter, leased)
    done: list[tuple[dict[str, str], int, Source]] = []

    async def reset_units() -> None:
        decision = await limiter.reset(DOMAIN, reset)
        done.append((reset, 0, decision.source))

    async def refund_units() -> None:
        decision = await limiter.refund(DOMAIN, refunded, _REFUNDED)
        done.append((refunded, _COST - (decision.refunded or 0), decision.source))

    async with runtime.open_task_group() as tasks:
        tasks.start_soon(spending.run)
        await runtime.sleep(_BORROWED_S)
        world.pause(name, True)
        tasks.start_soon(limiter.peek, DOMAIN, reset)
        await runtime.sleep(_NOTICED_S)
        # Sent earlier, these requests would also reach the owner, after its pause.
        tasks.start_soon(reset_units)
        if may_refund:
            tasks.start_soon(refund_units)
        await runtime.sleep(_PAUSE_S - _NOTICED_S)
        world.pause(name, False)
        await runtime.sleep(_MERGED_S)
        spending.is_over = True
    await runtime.sleep(_REPORTED_S)
    wrong = await spending.wrong_count(limiter, "after a pause of the owner")
    for request, units, source in done:
        used = await used_units(limiter, request)
        if source is Source.STANDBY and used not in (None, units):
            wrong.append(f"a refund or reset by the standby must leave {units} units, got {used}")
    return wrong
