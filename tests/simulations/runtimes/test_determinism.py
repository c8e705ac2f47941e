"""Determinism: equal seeds give equal histories, so simulated code may depend only on the seed."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from simulations.mutants import TESTBEDS
from simulations.world.run import simulate
from tests.simulations.chance import found_in

ROOT = Path(__file__).parents[3]
INSIDE = ("hashring", "gossip", "ringfence", "node", "simulations")
OUTSIDE = {
    "node/supervisor/gateway.py": "starts a gateway beside a real node",
    "node/cli/demo.py": "real processes and their output",
    "node/cli/keys.py": "creates keys and certificates",
    "node/cli/replay.py": "replays a log against a real cluster",
    "node/demo": "real processes and their output",
    "node/config/discovery.py": "asks the host's resolver",
    "node/entry.py": "the command line",
    "node/config/key_files.py": "creates keys, which must be unpredictable",
    "node/replay": "replays a log against a real cluster",
    "node/serve.py": "a node on a real network",
    "node/supervisor/systemd.py": "notifies systemd about a process on a real host",
    "node/supervisor": "starts processes and supervises them",
    "ringfence/blocking.py": "threads",
    "ringfence/client/blocking/open_limiter.py": "threads",
    "ringfence/client/blocking/blocking_limiter.py": "threads",
    "ringfence/client/connect.py": "a client on a real network",
    "ringfence/gateway": "a separate process on a real network",
    "ringfence/http": "runs in other frameworks",
    "ringfence/integrations": "runs in other frameworks",
    "ringfence/runtime/caller_loop": "threads",
    "ringfence/transport/udp": "a real network",
    "ringfence/transport/tls/certificates.py": "certificates have dates",
    "simulations/cli": "the command line",
    "simulations/swarm.py": "starts processes and waits for them",
    "simulations/mutants/drawn": "starts processes and waits for them",
    "simulations/mutants/run.py": "makes nodes count in Python, where mutants apply",
    "simulations/mutants/runner.py": "starts processes and waits for them",
}
"""Modules that no simulated node or client runs, with the reason."""
ALLOWED = {
    ("ringfence/runtime/dispatch.py", "threading.local"): "detects the runtime of this thread",
    ("ringfence/peering/clock.py", "time.time_ns"): "the host's clock, used only in production",
    (
        "ringfence/peering/clock.py",
        "time.monotonic_ns",
    ): "the host's clock, used only in production",
    (
        "ringfence/transport/quic/endpoint.py",
        "os.urandom",
    ): "a default that tests and worlds replace",
    ("ringfence/transport/quic/connection.py", "order of self.cids"): "no message depends on it",
    (
        "ringfence/client/slots/held_slots.py",
        "id()",
    ): "finds slots; they are kept in order",
    ("ringfence/client/cluster/own_thread.py", "threading.get_ident"): "whether another one calls",
    ("ringfence/client/slots/slot_waits.py", "threading.get_ident"): "whether another thread wakes",
    (
        "ringfence/client/local_decider.py",
        "threading.Lock",
    ): "counts in one process, not on a node",
    (
        "ringfence/peering/engine_choice.py",
        "secrets.token_bytes",
    ): "used only without a secret; nodes have one",
    ("node/cli/common.py", "os.environ"): "width of a terminal; simulated commands print to files",
    ("node/config/settings.py", "os.environ"): "arguments of a real node",
    ("node/config/settings.py", "socket.gethostname"): "arguments of a real node",
    (
        "node/requests/sessions/open_sessions.py",
        "id()",
    ): "finds a session; sessions are kept in order of arrival",
    (
        "ringfence/rules/loading/yaml_composer.py",
        "id()",
    ): "finds a parsed node; no code iterates over the identities",
    (
        "node/metrics/detailed.py",
        "time.perf_counter_ns",
    ): "a stopwatch on which no decision depends",
    (
        "node/metrics/throttled_keys.py",
        "order of here.counts.keys() | before.counts.keys()",
    ): "sorted below",
    (
        "simulations/judging/invariants.py",
        "id()",
    ): "finds the judgement of an answer; no code iterates over the identities",
    (
        "simulations/world/run.py",
        "time.perf_counter",
    ): "duration of a run, which no event contains",
}
"""Uses that do not change a history, with the reason."""

TWICE = """
import sys
junk = [bytearray(n % 4096) for n in range({junk})]
del junk[::3]
from simulations.mutants import TESTBEDS
from simulations.world.run import simulate
import logging; logging.disable(logging.CRITICAL)
for name in {names}:
    print(name, simulate(TESTBEDS[name].scenario, {seed}, "").event_hash)
"""


@cache
def uses_inside() -> tuple[tuple[str, int, str], ...]:
    """Return module, line and name of each use that `chance` finds."""
    return tuple(
        (name, line, use)
        for folder in INSIDE
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not is_outside(name := path.relative_to(ROOT).as_posix())
        for line, use in found_in(path.read_text("utf-8"))
    )


def is_outside(name: str) -> bool:
    return any(name == shell or name.startswith(f"{shell}/") for shell in OUTSIDE)


def test_simulated_code_uses_no_clock_no_global_random_and_no_set_order() -> None:
    found = [
        f"{name}, line {line}: {use}; pass it as an argument, or sort it"
        for name, line, use in uses_inside()
        if (name, use) not in ALLOWED
    ]

    assert not found, "\n".join(found)


def test_every_allowed_use_still_exists() -> None:
    used = {(name, use) for name, _, use in uses_inside()}

    assert ALLOWED.keys() <= used


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("import time\ntime.monotonic()", "time.monotonic"),
        ("from time import perf_counter as now\nnow()", "time.perf_counter"),
        ("import time as clock\nread = clock.time", "time.time"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import datetime as dt\ndt.date.today()", "datetime.date.today"),
        ("import random\nrandom.choice([1])", "random.choice"),
        ("from random import shuffle\nshuffle([])", "random.shuffle"),
        ("from random import SystemRandom\nSystemRandom()", "random.SystemRandom"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("import secrets\nsecrets.token_hex()", "secrets.token_hex"),
        ("from uuid import uuid4\nuuid4()", "uuid.uuid4"),
        ("sorted([], key=lambda each: hash(each))", "hash()"),
        ("place = id(object())", "id()"),
        ("for each in {1, 2}: print(each)", "order of {1, 2}"),
        ("found = list(set([1]))", "order of set([1])"),
        ("a = {}\nfor each in a.keys() & {1}: pass", "order of a.keys() & {1}"),
        ("a = b = {}\nfor each in a.keys() - b: pass", "order of a.keys() - b"),
        ("def f(some: set[str]):\n    return [each for each in some]", "order of some"),
        ("def f(it):\n    some = {e for e in it}\n    return ', '.join(some)", "order of some"),
        ("def f(it):\n    some = frozenset(it)\n    return (0, *some)", "order of some"),
        ("def f(it):\n    some = set(it)\n    return some.pop()", "order of some"),
        (
            "class A:\n    def __init__(self):\n        self.some: set[int] = set()\n"
            "    def f(self):\n        for each in self.some: print(each)",
            "order of self.some",
        ),
    ],
)
def test_each_source_of_nondeterminism_is_detected(source: str, use: str) -> None:
    assert use in [found for _, found in found_in(source)]


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random\nRandom(1).choice([1])",
        "def f(random):\n    return random.choice([1])",
        "for each in sorted({1, 2}): print(each)",
        "def f(some: set[int]):\n    return max(some), len(some), 1 in some, sorted(some)",
        "def f(some: set[int]):\n    return any(each > 1 for each in some)",
        "def f(some: set[int]):\n    return {each + 1 for each in some}",
        "for each in {'a': 1}: print(each)",
        "for each in dict.fromkeys([1]).keys(): print(each)",
    ],
)
def test_uses_that_depend_only_on_the_seed_are_allowed(source: str) -> None:
    assert found_in(source) == []


def test_a_run_repeats_in_another_process_with_other_hashes_and_heap() -> None:
    names = ("leave",)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", TWICE.format(junk=junk, names=names, seed=5)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed, junk in (("1", 0), ("4242", 50_000))
    ]

    one, other = (child.communicate(timeout=100)[0] for child in children)

    assert one == other
    assert len(set(one.split())) == 2 * len(names)


@pytest.mark.parametrize("name", ["costs", "clock-ahead"])
def test_a_run_repeated_in_one_process_is_the_same(name: str) -> None:
    scenario = TESTBEDS[name].scenario

    one, other = (simulate(scenario, 3, "").event_hash for _ in range(2))

    assert one == other
    assert simulate(scenario, 4, "").event_hash != one
