"""Histories of checks for tests of the judge: rules, answers, and what the judge finds."""

from hashring import Member, Ring, shard_of
from ringfence.rules import adhoc_rule, parse_limit
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Scenario

RULES = """
domain: sim
descriptors:
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 100, algorithm: sliding_window_log}
  - key: daily
    rate_limit: {unit: day, requests_per_unit: 100, algorithm: sliding_window_log}
  - key: everywhere
    rate_limit: {unit: day, requests_per_unit: 400, algorithm: fixed_window, scope: global}
  - key: single
    rate_limit: {period: 30s, requests_per_unit: 5, algorithm: token_bucket, burst: 1}
  - key: bucket
    rate_limit: {period: 3s, requests_per_unit: 3, algorithm: token_bucket}
  - key: pair
    rate_limit: {period: 10s, requests_per_unit: 2, algorithm: leaky_bucket}
  - key: queued
    rate_limit: {period: 30s, requests_per_unit: 3, algorithm: leaky_bucket, mode: queue}
  - key: soft
    rate_limit: {unit: day, requests_per_unit: 4, soft: 50%, algorithm: fixed_window}
  - key: slow
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket}
  - key: home
    rate_limit: {unit: day, requests_per_unit: 400, global: {mode: home, home: dc1}}
  - key: sliding
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window}
  - key: split
    rate_limit: {period: 5s, requests_per_unit: 6, algorithm: token_bucket, global: {mode: split}}
  - key: home_log
    rate_limit:
      period: 5s
      requests_per_unit: 5
      algorithm: sliding_window_log
      global: {mode: home, home: dc1}
  - key: queue_of_all
    rate_limit: {period: 30s, requests_per_unit: 3, algorithm: leaky_bucket, scope: global}
"""
KNOWN = {rule.path[-1][0]: rule for rule in load_text(RULES).rules.rules()}
KNOWN["opened"] = adhoc_rule(parse_limit("10/5s first_hit"))  # No rule file has such limits.


def order_of(name, datacenter="dc1", *, datacenters=1):
    """Return the nodes of a key: its owner, its standby and so on."""
    members = [
        Member(f"n{number}", datacenter, "z1")
        for number in range(1, 7)
        if f"dc{(number - 1) % datacenters + 1}" == datacenter
    ]
    return Ring.of(members).owners(shard_of(encode_key(KNOWN[name].id, ["k"])), len(members))


OWNER, STANDBY, *OTHERS = order_of("log")


def rows(count, begin, end, datacenter="dc1", **fields):
    """Return answers in even intervals."""
    first = {"allowed": True, "source": Source.OWNER} | fields
    times = [begin + (end - begin) * number / count for number in range(count)]
    return [Answered(at, at + 0.001, datacenter, "k", 1, **first) for at in times]


def judged(
    name, answers, faults=(), *, used=None, datacenters=1, end=60.0, disturbances=None, holders=None
):
    """Return the checker with the violated laws."""
    ledger = Ledger()
    for answer in answers:
        ledger.add(name, answer)
    scenario = Scenario("judged", "", nodes=6, datacenters=datacenters, faults=tuple(faults))
    invariants = Invariants({name: KNOWN[name]}, scenario, 0.2, 0.0)
    final = Final() if used is None else Final({(dc, name, "k"): n for dc, n in used.items()})
    if disturbances is not None:
        final.disturbances = disturbances
    if holders is not None:
        final.holders = holders
    return invariants, {each.property for each in invariants.violations(ledger, final, end)}


def violated(name, answers, faults=(), **more):
    return judged(name, answers, faults, **more)[1]
