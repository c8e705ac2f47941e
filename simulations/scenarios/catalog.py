"""Built-in scenarios of the simulator, by name. Each one has a page in the documentation."""

from simulations.scenarios.scenario import Fault, Load, Network, Scenario

__all__ = ["SCENARIOS", "scenario"]

RULES = """\
domain: sim
descriptors:
  - key: client
    rate_limit: {period: 10s, requests_per_unit: 12, algorithm: sliding_window_log}
  - key: exact
    rate_limit: {unit: day, requests_per_unit: 15, algorithm: sliding_window_log}
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 60, algorithm: fixed_window}
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token_bucket}
  - key: job
    rate_limit: {period: 20s, requests_per_unit: 2, algorithm: concurrency}
  - key: world
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_window, scope: global}
  - key: everywhere
    rate_limit: {unit: day, requests_per_unit: 400, algorithm: fixed_window, scope: global}
"""
_EXACT = Load(rule="exact", per_second=40, keys=60)
_MIXED = (Load(rule="client", per_second=60, keys=40), _EXACT)
_GLOBAL = (
    Load(rule="everywhere", per_second=60, keys=4),
    Load(rule="world", per_second=40, keys=2),
)
_WAN = Network(latency="regions")


def _made(*scenarios: Scenario) -> dict[str, Scenario]:
    return {each.name: each for each in scenarios}


SCENARIOS = _made(
    Scenario(
        "steady",
        "no faults: every owner decides exactly, and no check waits",
        rules=RULES,
        loads=(*_MIXED, Load(rule="window", per_second=20), Load(rule="bucket", per_second=20)),
    ),
    Scenario(
        "hot-key",
        "one key gets 90 % of the checks: its single owner decides exactly",
        rules=RULES,
        loads=(Load("hot", 200, 50, "client", args={"share": 0.9}), _EXACT),
    ),
    Scenario(
        "flash-crowd",
        "ten times the load for five seconds: limits hold, and latency stays low",
        rules=RULES,
        loads=(Load("flash", 120, 200, "client"), _EXACT),
    ),
    Scenario(
        "node-crash",
        "a node crashes and restarts: its standby continues from a replica a tenth of a second old",
        nodes=5,
        rules=RULES,
        loads=_MIXED,
        faults=(Fault(10, "crash", 20, {"node": "n2"}),),
    ),
    Scenario(
        "rolling-restart",
        "all five nodes restart one after another: no hit is lost, and no limit is exceeded",
        nodes=5,
        seconds=60,
        rules=RULES,
        loads=_MIXED,
        faults=tuple(
            Fault(5 + 10 * number, "leave", 8 + 10 * number, {"node": f"n{number + 1}"})
            for number in range(5)
        ),
    ),
    Scenario(
        "split-brain",
        "two of five nodes are cut off: both sides decide, and after the split all hits count",
        nodes=5,
        seconds=40,
        calm=60,
        rules=RULES,
        loads=_MIXED,
        faults=(Fault(8, "cut", 25, {"node": "n1,n2"}),),
    ),
    Scenario(
        "datacenter-loss",
        "one of three data centers fails: the others continue with their own counts",
        nodes=6,
        datacenters=3,
        seconds=40,
        calm=60,
        rules=RULES,
        loads=(*_GLOBAL, _EXACT),
        network=_WAN,
        faults=(Fault(10, "crash", 25, {"datacenter": "dc3"}),),
    ),
    Scenario(
        "wan-partition",
        "one of three data centers is cut off: it decides by its last counts, and later they "
        "converge",
        nodes=6,
        datacenters=3,
        seconds=40,
        calm=60,
        rules=RULES,
        loads=_GLOBAL,
        network=_WAN,
        faults=(Fault(10, "cut", 25, {"datacenter": "dc2"}),),
    ),
    Scenario(
        "clock-skew",
        "one host's clock is an hour off: members detect it, and the node only forwards checks",
        nodes=5,
        seconds=40,
        rules=RULES,
        loads=_MIXED,
        faults=(
            Fault(8, "clock_step", None, {"node": "n3", "by_s": 3600}),
            Fault(25, "clock_step", None, {"node": "n3", "by_s": -3600}),
            Fault(5, "clock_drift", 35, {"node": "n1", "ppm": 300}),
        ),
    ),
    Scenario(
        "slow-node",
        "one host is suspended for seconds at a time, and another one has a large delay",
        nodes=5,
        seconds=40,
        calm=40,
        rules=RULES,
        loads=_MIXED,
        faults=(
            Fault(8, "pause", 9, {"node": "n2"}),
            Fault(15, "pause", 20, {"node": "n2"}),
            Fault(25, "slow", 33, {"node": "n4", "extra_ms": 100}),
        ),
    ),
    Scenario(
        "churn",
        "nodes crash, leave and return all the time",
        nodes=7,
        seconds=60,
        calm=40,
        rules=RULES,
        loads=_MIXED,
        faults=(
            Fault(5, "crash", 11, {"node": "n2"}),
            Fault(12, "leave", 16, {"node": "n5"}),
            Fault(20, "crash", 21, {"node": "n3"}),
            Fault(27, "leave", 33, {"node": "n7"}),
            Fault(35, "crash", 45, {"node": "n2"}),
            Fault(41, "leave", 44, {"node": "n6"}),
        ),
    ),
    Scenario(
        "thousand-nodes",
        "a thousand members: a crash is detected within seconds, at 0.5 kB/s per member",
        level="core",
        nodes=1000,
        seconds=60,
        calm=30,
        rules=RULES,
        loads=(Load(rule="exact", per_second=100, keys=500),),
        faults=(
            Fault(10, "crash", 40, {"node": "n17"}),
            Fault(20, "leave", None, {"node": "n500"}),
        ),
    ),
    Scenario(
        "attack",
        "half of all checks come from an attacker with a new key each time: other clients are "
        "not affected",
        rules=RULES,
        loads=(Load("attack", 200, 50, "client", args={"share": 0.5}), _EXACT),
    ),
    Scenario(
        "replay",
        "a real access log, compressed into half a minute, over two data centers",
        nodes=4,
        datacenters=2,
        rules=RULES,
        loads=(Load("log", 0, rule="client"), Load(rule="everywhere", per_second=40, keys=4)),
        network=Network(latency="near"),
    ),
    Scenario(
        "canary",
        "must fail: a node is cut off, but the invariants assume a run without faults",
        nodes=3,
        seconds=20,
        calm=40,
        rules=RULES,
        loads=(Load(rule="exact", per_second=100, keys=10),),
        faults=(Fault(5, "cut", 15, {"node": "n1"}),),
        is_blind=True,
    ),
)


def scenario(name: str) -> Scenario:
    """Return the built-in scenario with this name. Raises `ValueError`, which lists the known
    names."""
    found = SCENARIOS.get(name)
    if found is None:
        raise ValueError(f"scenario must be one of {', '.join(SCENARIOS)}, got {name!r}")
    return found
