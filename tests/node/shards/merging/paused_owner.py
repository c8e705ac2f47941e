"""Owner that is paused, and the standby that decides for it."""

from ringfence.limiter import Limit
from tests.node.shards.ownership.ownership_host import NOW, Host, limits_of

S = 10**9
LIMITS = limits_of(1000)


def names(limit: Limit) -> str:
    return f"{limit.algorithm}-{limit.slots}"


def reset(host: Host, seq: int = 0) -> None:
    host.reset((8, seq, 0))


def refund(host: Host, units: int, seq: int = 1) -> None:
    host.refund(units, check_id=(9, seq, 0), at=host.now)


def paused(limit: Limit, units: int = 100, parts: int = 1) -> tuple[Host, Host]:
    """Return an owner that is paused after some units, and the standby that decides for it."""
    owner, standby = Host("b", limit), Host("a", limit, parts=parts)
    owner.start(units)
    owner.now = standby.now = NOW + S
    owner.copy_to(standby)
    standby.cover("b")
    return owner, standby


def resume(owner: Host, standby: Host) -> None:
    owner.now = standby.now = NOW + 3 * S
    owner.pull(standby)
    assert owner.holds
    assert not standby.holds
