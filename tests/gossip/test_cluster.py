"""Simulated clusters: required properties, and regression tests of bugs in other projects."""

from math import log10

import pytest
from msgspec.structs import replace

from gossip import Settings, Status

LAN = Settings.lan()
TWELVE_ROUNDS = 12 * LAN.local_dc.interval


def test_members_that_share_one_seed_find_each_other(world):
    cluster = world()
    cluster.grow(5)

    assert cluster.agree()
    assert not cluster.deaths()


def test_members_may_join_through_any_member(world):
    cluster = world()
    for number in range(5):
        cluster.start(f"n{number}", seeds=[f"n{number - 1}"] if number else [])
        cluster.run(0.5)
    cluster.run(3)

    assert cluster.agree()


@pytest.mark.parametrize("seed", range(12))
def test_of_three_members_a_killed_one_is_dead_for_the_others_within_four_seconds(world, seed):
    cluster = world(seed)
    cluster.grow(3)
    cluster.run(seed * 0.043)
    cluster.kill("n1")

    cluster.run_until(lambda: set(cluster.views("n1").values()) == {Status.DEAD}, within=4.0)


def test_a_member_unreachable_for_one_other_is_saved_by_indirect_probes(world):
    cluster = world()
    cluster.grow(5)
    cluster.cut = lambda source, target: {source, target} == {"n1", "n2"}
    cluster.run(60)

    assert not cluster.deaths()
    assert cluster.cores["n1"].counters["saved_indirectly"] > 0


def test_a_false_suspicion_is_refuted_before_it_times_out(world):
    cluster = world()
    cluster.grow(5)
    cluster.sleep("n3", 1.2)
    cluster.run(10)

    assert cluster.agree()
    assert not cluster.deaths()


@pytest.mark.parametrize("clock_ms", [10**15, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("address", [None, ("10.9.9.9", 1)], ids=["same place", "elsewhere"])
def test_a_restart_under_the_same_name_wins_within_twelve_rounds(world, clock_ms, address):
    """V3: the record of the old process must not block the new process."""
    cluster = world()
    cluster.grow(5)
    generation = cluster.cores["n2"].me.generation
    cluster.kill("n2")
    cluster.run(5)
    restarted = max(1, min(clock_ms, generation * 2) - 1 if clock_ms == 1 else clock_ms)
    cluster.start("n2", seeds=["n0"], generation=restarted, address=address)

    cluster.run_until(cluster.agree, within=TWELVE_ROUNDS)


def test_a_restart_faster_than_the_failure_detector_is_noticed(world):
    """The new process answers the probes of the old one."""
    cluster = world()
    cluster.grow(4)
    cluster.kill("n2")
    cluster.run(0.2)
    core = cluster.start("n2", seeds=["n0"])

    cluster.run_until(cluster.agree, within=TWELVE_ROUNDS)
    seen = {each.records["n2"].generation for each in cluster.cores.values()}
    assert seen == {core.me.generation}


@pytest.mark.parametrize("seed", range(3))
def test_when_all_restart_at_once_all_are_alive_again(world, seed):
    """V4, memberlist#311, foca#19: where a death was received late, the member stayed dead."""
    cluster = world(seed)
    cluster.grow(8)
    for number in range(8):
        cluster.kill(f"n{number}")
        cluster.run(0.7)
        cluster.start(f"n{number}", seeds=["n0" if number else "n7"])

    cluster.run_until(cluster.agree, within=30)


def test_updates_are_not_sent_forever(world):
    """foca#19: the queue of updates never became empty again."""
    cluster = world()
    cluster.grow(12)
    cluster.run(5)

    assert all(core.pending == 0 for core in cluster.cores.values())


@pytest.mark.parametrize("seconds", [30, 120])
def test_a_healed_partition_leaves_no_trace(world, seconds):
    """V5: both sides merge again, and meanwhile no running member leaves the ring."""
    cluster = world()
    cluster.grow(8)
    sides = [{"n0", "n1", "n2"}, {"n3", "n4", "n5", "n6", "n7"}]
    cluster.cut = lambda source, target: (source in sides[0]) != (target in sides[0])
    cluster.run(seconds)
    for side in sides:
        for name in side:
            routed = {record.name for record in cluster.cores[name].routed()}
            assert routed - side == set()
    cluster.cut = lambda source, target: False
    healed_at = len(cluster.changes)

    cluster.run_until(cluster.agree, within=60)

    assert not [
        (viewer, change.after.name)
        for _, viewer, change in cluster.changes[healed_at:]
        if change.before is not None and change.before.is_routed and not change.after.is_routed
    ]


@pytest.mark.parametrize("seed", range(4))
def test_members_rejoin_ten_seconds_after_a_long_partition(world, seed):
    """In each announcement interval, a member contacts a member that it considers dead."""
    cluster = world(seed)
    cluster.grow(6)
    side = {"n0", "n1", "n2"}
    cluster.cut = lambda source, target: (source in side) != (target in side)
    cluster.run(90 + 2.7 * seed)
    cluster.cut = lambda source, target: False

    cluster.run_until(cluster.agree, within=LAN.announce_every + 2.0)


def test_a_member_that_lost_all_others_finds_its_seeds_again(world):
    """V5, foca#15: a member whose peers were all down never recovered."""
    cluster = world()
    cluster.grow(3)
    for name in ("n0", "n1"):
        cluster.kill(name)
    cluster.run(2000)
    cluster.start("n0")

    cluster.cores["n2"].set_seeds([cluster.cores["n0"].me.address])
    cluster.do("n2", cluster.cores["n2"].join([cluster.cores["n0"].me.address], cluster.now))
    cluster.run_until(cluster.agree, within=60)


def test_separate_clusters_merge_through_a_seed(world):
    """cortex#4931: two separate clusters never merged."""
    cluster = world()
    cluster.grow(3, prefix="a", seed="a0")
    cluster.grow(3, prefix="b", seed="b0")
    cluster.do("a2", cluster.cores["a2"].join([cluster.cores["b0"].me.address], cluster.now))

    cluster.run_until(cluster.agree, within=60)


def test_a_suspended_member_declares_no_member_dead_when_it_resumes(world):
    cluster = world()
    cluster.grow(6)
    for seconds in (0.3, 0.9, 1.5, 3, 20):
        cluster.sleep("n3", seconds)
        cluster.run(seconds + 10)

    accusers = {change.after.accuser for _, _, change in cluster.changes if change.after.accuser}
    declared_dead = set(cluster.deaths())
    assert "n3" not in accusers
    assert declared_dead <= {"n3"}
    assert set(cluster.views("n3").values()) == {Status.ALIVE}


def test_no_healthy_member_is_declared_dead_while_one_in_ten_stalls(world):
    """S15."""
    cluster = world()
    cluster.grow(20)
    stalled = {"n4", "n11"}
    for _ in range(4):
        for name in sorted(stalled):
            cluster.sleep(name, cluster.random.uniform(0.5, 12))
        cluster.run(cluster.random.uniform(1, 13))

    assert set(cluster.deaths()) <= stalled


def test_one_faulty_member_does_not_disturb_the_others(world):
    """S16, consul#5567 and #5928: one member with packet loss made dozens of members flap."""
    cluster = world()
    cluster.grow(10)
    sick = "n5"
    cluster.cut = lambda source, target: sick in (source, target) and cluster.random.random() < 0.8
    before = len(cluster.changes)
    cluster.run(15)

    others = [
        change.after.name
        for _, viewer, change in cluster.changes[before:]
        if viewer != sick and change.after.name != sick and not change.after.is_routed
    ]
    assert others == []


def test_a_member_with_a_flapping_link_takes_itself_out_of_the_ring(world):
    """Case of the Rapid paper: a link that fails for 20 s of every 40 s causes endless changes."""
    cluster = world()
    cluster.grow(8)
    deaf = {"n3"}
    for _ in range(6):
        cluster.cut = lambda source, target: bool(deaf & {source, target})
        cluster.run(20)
        cluster.cut = lambda source, target: False
        cluster.run(20)

    assert cluster.cores["n3"].me.forward_only
    assert all(not core.records["n3"].is_routed for core in cluster.cores.values())
    returns = [
        change
        for at, viewer, change in cluster.changes
        if viewer == "n0" and at > 150 and change.after.name == "n3" and change.after.is_routed
    ]
    assert not returns


def test_members_with_80_percent_loss_recover(world):
    """Other case of the Rapid paper: when the loss ends, all members are alive again."""
    cluster = world()
    cluster.grow(8)
    cluster.cut = lambda source, target: target == "n2" and cluster.random.random() < 0.8
    cluster.run(20)
    cluster.cut = lambda source, target: False
    cluster.run_until(lambda: set(cluster.views("n2").values()) == {Status.ALIVE}, within=60)


@pytest.mark.parametrize("seed", range(3))
def test_losing_a_seventh_of_datagrams_causes_no_death(world, seed):
    cluster = world(seed)
    cluster.grow(8)
    cluster.loss = 0.15
    cluster.run(15)

    assert not cluster.deaths()


def test_a_leaving_member_is_asked_until_it_has_left_and_never_dead(world):
    cluster = world()
    cluster.grow(6)
    cluster.do("n2", cluster.cores["n2"].leave(cluster.now))
    cluster.run(0.1)
    assert set(cluster.views("n2").values()) == {Status.LEAVING}
    assert all("n2" in [r.name for r in c.routed()] for c in cluster.cores.values())
    assert all("n2" not in [r.name for r in c.placed()] for c in cluster.cores.values())

    cluster.do("n2", cluster.cores["n2"].left(cluster.now))
    cluster.kill("n2")
    cluster.run(30)

    assert set(cluster.views("n2").values()) == {Status.LEFT}
    assert not cluster.deaths()


def test_a_member_whose_announcement_that_it_has_left_is_lost_is_not_dead(world):
    cluster = world()
    cluster.grow(2)
    cluster.do("n1", cluster.cores["n1"].leave(cluster.now))
    cluster.run(0.1)
    cluster.cut = lambda source, target: True
    cluster.do("n1", cluster.cores["n1"].left(cluster.now))
    cluster.cut = lambda source, target: False

    cluster.run(2)

    assert cluster.cores["n0"].records["n1"].status is Status.LEFT
    assert not cluster.deaths()


def test_a_leaving_member_that_crashes_does_not_stay_leaving_forever(world):
    """V7."""
    cluster = world()
    cluster.grow(6)
    cluster.do("n2", cluster.cores["n2"].leave(cluster.now))
    cluster.run(0.1)
    cluster.kill("n2")

    cluster.run_until(lambda: set(cluster.views("n2").values()) == {Status.DEAD}, within=20)


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_a_restart_during_a_leave_puts_the_new_weight_into_the_ring(world, weight):
    """mimir#3801: a member restarted during its leave, and stayed leaving with too few tokens."""
    cluster = world()
    cluster.grow(4)
    cluster.do("n2", cluster.cores["n2"].leave(cluster.now))
    cluster.run(0.1)
    cluster.kill("n2")

    cluster.start("n2", seeds=["n0"], weight=weight)
    cluster.run_until(cluster.agree, within=TWELVE_ROUNDS)

    seen = [
        [each for each in core.placed() if each.name == "n2"] for core in cluster.cores.values()
    ]
    assert [[each.weight for each in records] for records in seen] == [[weight]] * 4


def test_a_member_that_left_is_not_counted_as_dead(world):
    """pyroscope#5434: cleanly stopped members were unhealthy until they were forgotten."""
    cluster = world()
    cluster.grow(6)
    cluster.do("n2", cluster.cores["n2"].leave(cluster.now))
    cluster.run(1)
    cluster.do("n2", cluster.cores["n2"].left(cluster.now))
    cluster.kill("n2")

    cluster.run(0.1)
    assert set(cluster.views("n2").values()) == {Status.LEFT}
    cluster.run(LAN.gossip_to_dead)
    assert set(cluster.views("n2").values()) == {Status.LEFT}
    assert cluster.agree()


def test_members_that_never_return_block_no_new_member(world):
    """pyroscope#5434: no new member became ready while a removed member was listed."""
    cluster = world()
    cluster.grow(6)
    for name in ("n3", "n4", "n5"):
        cluster.kill(name)
    cluster.run(20)
    assert set(cluster.views("n4").values()) == {Status.DEAD}

    cluster.start("new", seeds=["n0"])

    cluster.run_until(cluster.agree, within=TWELVE_ROUNDS)


def test_all_members_forget_dead_members_for_good(world):
    """foca#31: the number of known members grew far above the number of running ones."""
    settings = replace(LAN, forget_after=60.0, forget_seeds_after=60.0, announce_every=5.0)
    cluster = world(settings=settings)
    cluster.grow(6)
    for generation in range(3):
        cluster.kill("n5")
        cluster.run(10)
        cluster.start("n5", seeds=["n0"])
        cluster.start(f"once{generation}", seeds=["n0"])
        cluster.run(5)
        cluster.kill(f"once{generation}")
        cluster.run(20)
    cluster.run(100)

    assert cluster.agree()
    assert all(sorted(core.records) == sorted(cluster.cores) for core in cluster.cores.values())


def test_two_data_centers_are_one_pool(world):
    cluster = world()
    cluster.grow(4, prefix="a", seed="a0", datacenter="dc1")
    for number in range(4):
        cluster.start(f"b{number}", seeds=["a0"], datacenter="dc2")
    cluster.run_until(cluster.agree, within=10)

    cluster.kill("b1")
    cluster.run_until(lambda: set(cluster.views("b1").values()) == {Status.DEAD}, within=10)
    assert len({core.digest for core in cluster.cores.values()}) == 1


def test_a_cut_between_data_centers_heals(world):
    cluster = world()
    cluster.grow(3, prefix="a", seed="a0", datacenter="dc1")
    for number in range(3):
        cluster.start(f"b{number}", seeds=["a0"], datacenter="dc2")
    cluster.run_until(cluster.agree, within=10)
    cluster.cut = lambda source, target: source[0] != target[0]
    cluster.run(200)
    assert {record.datacenter for record in cluster.cores["a0"].routed()} == {"dc1"}
    cluster.cut = lambda source, target: False

    cluster.run_until(cluster.agree, within=60)


@pytest.mark.parametrize("size", [128])
def test_large_clusters_use_datagrams_of_bounded_size(world, size):
    """S12, cortex#4326: with more than 126 members, messages were malformed."""
    cluster = world()
    cluster.grow(size)

    assert cluster.agree()
    assert cluster.largest <= 1130


def test_one_seed_has_one_history(world):
    def history(seed):
        cluster = world(seed)
        cluster.grow(6)
        cluster.kill("n2")
        cluster.run(8)
        return cluster.changes, cluster.datagrams

    assert history(3) == history(3)
    assert history(3) != history(4)


def test_with_lifeguard_off_members_still_find_and_lose_each_other(world):
    cluster = world(settings=LAN.without_lifeguard())
    cluster.grow(6)
    assert cluster.agree()

    cluster.kill("n1")
    cluster.run_until(lambda: set(cluster.views("n1").values()) == {Status.DEAD}, within=10)


def test_a_member_learns_that_another_name_uses_its_address(world):
    """A crashed member is declared dead although a new member answers at its address."""
    cluster = world()
    cluster.grow(4)
    address = cluster.cores["n3"].me.address
    cluster.kill("n3")
    cluster.start("other", seeds=["n0"], address=address)

    cluster.run_until(
        lambda: (
            set(cluster.views("n3").values()) == {Status.DEAD, None}
            or set(cluster.views("n3").values()) == {Status.DEAD}
        ),
        within=15,
    )
    assert set(cluster.views("other").values()) == {Status.ALIVE}


def convergence_bound(count):
    """Return the longest time of a probe round, a suspicion and twelve rounds of gossip."""
    local_dc = LAN.local_dc
    suspicion = (
        local_dc.suspicion_factor
        * max(1.0, log10(count))
        * local_dc.interval
        * local_dc.suspicion_max_factor
    )
    return (2 * count - 1) * local_dc.interval + suspicion + 12 * local_dc.gossip_interval


@pytest.mark.parametrize("count", [3, 10, 30])
def test_after_a_crash_all_views_are_equal_within_the_bound(world, count):
    """V2: detection, suspicion and dissemination suffice, without full exchanges."""
    cluster = world(count)
    cluster.grow(count)
    cluster.kill("n1")

    cluster.run_until(cluster.agree, within=convergence_bound(count))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [3, 10, 30])
def test_after_a_join_and_a_leave_all_views_are_equal_within_twelve_rounds(world, count, seed):
    """V2: without a suspicion, dissemination takes at most twelve rounds of gossip."""
    cluster = world(seed)
    cluster.grow(count)
    within = 12 * LAN.local_dc.gossip_interval
    cluster.start("late", seeds=["n0"])
    cluster.run_until(cluster.agree, within=within)

    cluster.do("n1", cluster.cores["n1"].leave(cluster.now))
    cluster.run(1)
    cluster.do("n1", cluster.cores["n1"].left(cluster.now))
    cluster.kill("n1")
    cluster.run_until(cluster.agree, within=within)
