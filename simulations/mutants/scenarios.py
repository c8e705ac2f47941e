"""Small scenarios for mutants: a few nodes, some seconds and one kind of fault each."""

from msgspec.structs import replace

from simulations.mutants.scenario_builder import Testbed, build_testbed
from simulations.scenarios.scenario import Fault, Load, Network

__all__ = ["TESTBEDS"]

_DAY = Load(rule="day", per_second=40, keys=12)
_KEPT = Load(rule="kept", per_second=30, keys=8)
_LOG = Load(rule="log", per_second=20, keys=4)
_MIXED = (_DAY, _KEPT, _LOG)
_RESERVED = tuple(
    [
        Load(rule=rule, per_second=20, keys=4, reservations=0.5, settle_after_s=3.0)
        for rule in ("day", "log", "fixed")
    ]
)
_NEAR = Network(latency="near")

_ALL: tuple[Testbed, ...] = (
    build_testbed(
        "algorithms",
        "one node, each algorithm at its limit through several windows",
        nodes=1,
        seconds=14,
        calm=1,
        loads=tuple(
            Load(rule=rule, per_second=16, keys=2)
            for rule in ("log", "fixed", "sliding", "bucket", "queued", "soft", "scarce")
        ),
    ),
    build_testbed(
        "costs",
        "one node, checks that cost three units, alone and under two limits at once",
        nodes=1,
        seconds=6,
        calm=1,
        loads=(
            Load(rule="day", per_second=20, keys=2, cost=3),
            Load(rule="log", per_second=10, keys=2, cost=3),
            Load(rule="scarce", per_second=40, keys=3, also="fixed"),
        ),
    ),
    build_testbed(
        "groups",
        "three nodes, each check under two limits that have different owners",
        seconds=6,
        calm=3,
        loads=(
            Load(rule="scarce", per_second=40, keys=12, also="fixed"),
            Load(rule="kept", per_second=40, keys=8, also="log"),
        ),
        unwanted=("copy_lost", "member_died"),
    ),
    build_testbed(
        "refunds",
        "two nodes, every third check refunded, from a log with the age of the check",
        nodes=2,
        seconds=5,
        calm=2,
        loads=(
            Load(rule="day", per_second=40, keys=6, refunds=0.3),
            Load(rule="scarce", per_second=20, keys=3, refunds=0.3),
            Load(rule="log", per_second=20, keys=3, refunds=0.3, aged_refunds=True),
        ),
    ),
    build_testbed(
        "overrides",
        "three nodes, each check under two limits in the request that have different owners",
        seconds=4,
        calm=2,
        loads=(
            Load(
                rule="one",
                per_second=20,
                keys=6,
                limit="12/day fixed_window",
                also="other",
                also_limits=("9/2s",),
                overrides=True,
            ),
        ),
    ),
    build_testbed(
        "own-refunds",
        "two nodes, clients that may refund only their own charges, at once or up to 2 s later",
        nodes=2,
        seconds=6,
        calm=3,
        loads=(
            Load(rule="kept", per_second=30, keys=4, refunds=0.3),
            Load(rule="log", per_second=20, keys=3, refunds=0.3, refund_after_s=2.0),
        ),
        bounded_refunds=True,
    ),
    build_testbed(
        "reservations",
        "two nodes, half of all requests reserve an estimate for up to 3 s, then have their real "
        "cost",
        nodes=2,
        seconds=6,
        calm=6,
        loads=_RESERVED,
    ),
    build_testbed(
        "reservations-cut",
        "two of three nodes are cut off, and reservations under two limits reach only one owner",
        seconds=10,
        calm=10,
        loads=(
            Load(
                rule="day",
                per_second=20,
                keys=12,
                also="kept",
                reservations=1.0,
                settle_after_s=2.5,
            ),
        ),
        faults=(Fault(3, "cut", 6, {"node": "n2,n3"}),),
    ),
    build_testbed(
        "costs-after",
        "two nodes, half of all requests pass a middleware, which settles their real cost later",
        nodes=2,
        seconds=6,
        calm=6,
        loads=tuple([replace(load, cost_after=True) for load in _RESERVED]),
    ),
    build_testbed(
        "charges",
        "two nodes, every fifth request a charge, also beyond the limit",
        nodes=2,
        seconds=6,
        calm=2,
        loads=(
            Load(rule="scarce", per_second=20, keys=3, charges=0.2),
            Load(rule="log", per_second=20, keys=2, charges=0.2),
        ),
    ),
    build_testbed(
        "resets",
        "connections break continually: requests in flight are repeated and count once",
        nodes=2,
        seconds=14,
        calm=3,
        loads=(Load(rule="day", per_second=1000, keys=9),),
        network=Network(resets=20.0),
        wanted=("repeat_answered",),
    ),
    build_testbed(
        "leave",
        "a node leaves and returns: no hit is lost",
        seconds=9,
        calm=5,
        loads=_MIXED,
        faults=(Fault(2, "leave", 6, {"node": "n2"}),),
        unwanted=("member_died",),
    ),
    build_testbed(
        "crash",
        "a node crashes under load and restarts",
        seconds=12,
        calm=8,
        loads=_MIXED,
        faults=(Fault(3, "crash", 10, {"node": "n2"}),),
        wanted=("decided_as_standby", "member_died"),
    ),
    build_testbed(
        "crash-for-good",
        "a node crashes and does not return: other nodes take over its shards",
        seconds=6,
        calm=14,
        loads=_MIXED,
        faults=(Fault(3, "crash", None, {"node": "n2"}),),
        wanted=("member_died",),
    ),
    build_testbed(
        "quick-restart",
        "a node restarts half a second after a crash, before the failure is detected",
        seconds=8,
        calm=6,
        loads=_MIXED,
        faults=(Fault(4, "crash", 4.5, {"node": "n2"}),),
    ),
    build_testbed(
        "restart-alone",
        "a node restarts without reachable seeds before the failure is detected, and starts alone",
        nodes=2,
        seconds=4,
        calm=14,
        loads=_MIXED,
        faults=(
            Fault(5, "crash", 5.05, {"node": "n2", "seedless": 1}),
            Fault(5.04, "loss", 7.9, {"node": "n2", "share": 1.0}),
        ),
        unwanted=("member_died",),
    ),
    build_testbed(
        "two-crashes",
        "a node crashes, then its standby, long after the last check of a key",
        seconds=4,
        calm=26,
        loads=_MIXED,
        faults=(
            Fault(5, "crash", 8, {"node": "n2"}),
            Fault(20, "crash", None, {"node": "n3"}),
        ),
    ),
    build_testbed(
        "standby-restart",
        "a standby restarts before its failure is detected; later its owner crashes",
        seconds=4,
        calm=16,
        loads=_MIXED,
        faults=(
            Fault(5, "crash", 5.3, {"node": "n2"}),
            Fault(14, "crash", None, {"node": "n3"}),
        ),
    ),
    build_testbed(
        "far-restart",
        "a node with a slow link to its standby restarts, and receives counts from far away again",
        nodes=4,
        datacenters=2,
        seconds=4.7,
        calm=18,
        network=_NEAR,
        loads=(Load(rule="everywhere", per_second=40, keys=20),),
        faults=(
            Fault(4.2, "slow", 5.2, {"node": "n4", "from": "n2", "extra_ms": 1000}),
            Fault(5, "crash", 5.3, {"node": "n4"}),
        ),
        wanted=("digest_repaired",),
    ),
    build_testbed(
        "clock-back",
        "a node crashes and restarts with a clock behind its earlier one",
        seconds=10,
        calm=8,
        loads=_MIXED,
        faults=(
            Fault(2, "crash", 7, {"node": "n2"}),
            Fault(4, "clock_step", None, {"node": "n2", "by_s": -100}),
        ),
    ),
    build_testbed(
        "clock-wrong",
        "a host's clock is an hour wrong; its node leaves the ring and later returns",
        seconds=8,
        calm=12,
        loads=(_DAY,),
        faults=(Fault(2, "clock_step", None, {"node": "n3", "by_s": 3600}),),
        wanted=("clock_suspect",),
    ),
    build_testbed(
        "pause",
        "a host stalls for a second, and no member is declared dead",
        seconds=8,
        calm=8,
        loads=_MIXED,
        faults=(Fault(3, "pause", 4.1, {"node": "n2"}),),
        unwanted=("member_died",),
    ),
    build_testbed(
        "long-pause",
        "a host stalls until it is declared dead, and returns",
        seconds=9,
        calm=10,
        loads=_MIXED,
        faults=(Fault(2, "pause", 8, {"node": "n2"}),),
        wanted=("own_pause_noticed",),
    ),
    build_testbed(
        "split",
        "a node is cut off: both sides decide, and all hits count after the merge",
        seconds=12,
        calm=34,
        loads=(_DAY,),
        faults=(Fault(2, "cut", 12, {"node": "n1"}),),
        wanted=("split_healed",),
    ),
    build_testbed(
        "lossy",
        "some datagrams are lost: indirect probes reach silent members",
        nodes=4,
        seconds=16,
        calm=6,
        loads=(Load(rule="day", per_second=20, keys=6),),
        faults=(Fault(1, "loss", 15, {"share": 0.08}),),
        wanted=("indirect_ack_saved",),
        unwanted=("member_died",),
    ),
    build_testbed(
        "repeats",
        "half of all datagrams arrive twice and count once",
        seconds=3,
        calm=2,
        loads=_MIXED,
        network=Network(repeats=0.5),
        level="node",  # The core level does not seal datagrams.
        wanted=("replay_rejected",),
    ),
    build_testbed(
        "two-centers",
        "two data centers share limits that are never reached",
        nodes=2,
        datacenters=2,
        seconds=8,
        calm=4,
        network=_NEAR,
        loads=(
            Load(rule="everywhere", per_second=30, keys=2),
            Load(rule="world", per_second=30, keys=1),
            Load(rule="pool", per_second=40, keys=1),
        ),
    ),
    build_testbed(
        "two-centers-full",
        "two data centers share a limit that both reach together",
        nodes=2,
        datacenters=2,
        seconds=14,
        calm=3,
        network=_NEAR,
        loads=(Load(rule="soon", per_second=60, keys=1),),
    ),
    build_testbed(
        "far-cut",
        "two data centers are cut apart, and exchange their counts afterwards",
        nodes=2,
        datacenters=2,
        seconds=8,
        calm=16,
        network=_NEAR,
        loads=(Load(rule="everywhere", per_second=40, keys=40),),
        faults=(Fault(3, "cut", 11, {"datacenter": "dc2"}),),
        wanted=("cells_lost",),
    ),
    build_testbed(
        "clock-ahead",
        "the clocks of one data center are two windows ahead, and its counts are rejected",
        nodes=2,
        datacenters=2,
        seconds=6,
        calm=4,
        network=_NEAR,
        loads=(Load(rule="soon", per_second=30, keys=2),),
        faults=(Fault(1, "clock_step", None, {"node": "n2", "by_s": 95}),),
        wanted=("cells_refused",),
    ),
    build_testbed(
        "join-in-cut",
        "a node restarts while its data center is cut off; later all members receive its record",
        nodes=4,
        datacenters=2,
        seconds=14,
        calm=14,
        network=_NEAR,
        loads=(Load(rule="day", per_second=10, keys=4),),
        faults=(
            Fault(1, "leave", 8, {"node": "n4"}),
            Fault(5, "cut", 14, {"datacenter": "dc2"}),
        ),
        level="node",  # Members join one after the other.
    ),
    build_testbed(
        "parts",
        "one limit is split between two data centers, and one of them decides another limit",
        nodes=4,
        datacenters=2,
        seconds=6,
        calm=2,
        network=_NEAR,
        loads=(
            Load(rule="parts", per_second=40, keys=1),
            Load(rule="home", per_second=40, keys=1),
        ),
    ),
)

TESTBEDS = {testbed.name: testbed for testbed in _ALL}
"""By name."""
