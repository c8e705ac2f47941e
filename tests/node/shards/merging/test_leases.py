"""Leases of an owner and of its standby, when the counters of both are merged."""

import pytest

from ringfence.limiter import Limit
from ringfence.wire import LeaseRequest
from tests.node.shards.merging.paused_owner import LIMITS, S, names, refund, reset, resume
from tests.node.shards.ownership.ownership_host import KEY, NOW, Host


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize(
    ("ended", "reported", "used"),
    [
        pytest.param(False, [], 300, id="open"),
        pytest.param(False, [50], 150, id="reported"),
        pytest.param(True, [], 300, id="ended"),
        pytest.param(True, [50], 150, id="reported late"),
    ],
)
def test_an_owner_counts_the_units_that_its_standby_has_lent(
    limit: Limit, ended: bool, reported: list[int], used: int
) -> None:
    owner, standby = Host("b", limit), Host("a", limit, lends=True)
    assert standby.lender is not None
    owner.start(100)
    owner.copy_to(standby)
    standby.cover("b")
    grant = standby.lender.lend("client", LeaseRequest(1, KEY, 200, [], []), standby.now)
    assert grant.units == 200
    if ended:
        standby.now += 2 * S
        standby.lender.expire(standby.now)
    for spent in reported:
        report = LeaseRequest(2, KEY, 0, [grant.lease], [spent])
        standby.lender.settle("client", report, standby.now)

    resume(owner, standby)

    assert owner.used == used


@pytest.mark.parametrize("limit", LIMITS, ids=names)
@pytest.mark.parametrize("spent", [0, 50])
def test_a_late_report_refunds_no_units_of_a_lease_that_the_standby_has_reset(
    limit: Limit, spent: int
) -> None:
    owner, standby = Host("b", limit, lends=True), Host("a", limit)
    assert owner.lender is not None
    owner.start(400)
    assert owner.lender.lend("client", LeaseRequest(1, KEY, 200, [], []), owner.now).lease == 7
    owner.copy_to(standby)
    owner.now = standby.now = NOW + 2 * S
    standby.cover("b")
    reset(standby)
    standby.spend(300)
    owner.lender.expire(owner.now)
    resume(owner, standby)

    owner.lender.settle("client", LeaseRequest(2, KEY, 0, [7], [spent]), owner.now)

    assert owner.used == 300


@pytest.mark.parametrize(("refunded", "used"), [(0, 400), (100, 300)])
def test_a_late_report_refunds_a_lease_after_another_refund_by_the_standby(
    refunded: int, used: int
) -> None:
    limit = LIMITS[0]
    owner, standby = Host("b", limit, lends=True), Host("a", limit)
    assert owner.lender is not None
    owner.start(400)
    owner.lender.lend("client", LeaseRequest(1, KEY, 200, [], []), owner.now)
    owner.copy_to(standby)
    owner.now = standby.now = NOW + 2 * S
    standby.cover("b")
    if refunded:
        refund(standby, refunded)
    owner.lender.expire(owner.now)
    resume(owner, standby)

    owner.lender.settle("client", LeaseRequest(2, KEY, 0, [7], [0]), owner.now)

    assert owner.used == used


def test_a_late_report_refunds_no_units_of_a_lease_that_a_later_owner_has_reset() -> None:
    owner, later = Host("b", LIMITS[0], lends=True), Host("a", LIMITS[0])
    assert owner.lender is not None
    owner.start(400)
    owner.lender.lend("client", LeaseRequest(1, KEY, 200, [], []), owner.now)
    owner.now = later.now = NOW + 2 * S
    owner.lender.expire(owner.now)
    reply = later.ask(owner)
    [group] = reply.groups
    assert later.receive(owner.name, reply)
    owner.ownership.acknowledge(later.name, group.shards, group.transfer_id, NOW)
    reset(later)
    later.spend(300)
    owner.pull(later)
    assert owner.used == 300

    owner.lender.settle("client", LeaseRequest(2, KEY, 0, [7], [0]), owner.now)

    assert owner.used == 300
