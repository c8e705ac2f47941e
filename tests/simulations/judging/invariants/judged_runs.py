"""Answers of a run with six nodes, and the properties that the judge finds violated."""

from dataclasses import replace

from hashring import Member, Ring
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Fault, Scenario

RULES = """
domain: sim
descriptors:
  - key: day
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}
  - key: log
    rate_limit: {period: 10s, requests_per_unit: 3, algorithm: sliding_window_log}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 3}
  - key: log_day
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding_window_log}
  - key: world
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_window, scope: global}
  - key: parts
    rate_limit: {unit: day, requests_per_unit: 4, algorithm: fixed_window, global: {mode: split}}
  - key: buckets
    rate_limit: {period: 10s, requests_per_unit: 6, algorithm: leaky_bucket, global: {mode: split}}
  - key: shared
    rate_limit: {period: 10s, requests_per_unit: 10, algorithm: token_bucket, scope: global}
  - key: shares
    rate_limit: {period: 4s, requests_per_unit: 8, algorithm: token_bucket, global: {mode: split}}
  - key: single
    rate_limit:
      {period: 5s, requests_per_unit: 9, algorithm: token_bucket, burst: 1, global: {mode: split}}
"""
RING = Ring.of([Member(f"n{number}", "dc1", "z1") for number in range(1, 7)])
SLIDING = """
domain: sim
descriptors:
  - key: sliding
    rate_limit: {period: 10s, requests_per_unit: 3, algorithm: sliding_window}
"""
KNOWN = {rule.path[-1][0]: rule for rule in load_text(RULES).rules.rules()}
DAY = {"day": KNOWN["day"]}
UNKNOWN = 60.0
"""Retry time of denials whose retry time a test does not check."""
CRASH = (Fault(1, "crash", 2, {"node": "n1"}),)


def answered(at, *, allowed=True, datacenter="dc1", retry_after=None, cost=1, source=Source.OWNER):
    if not allowed and retry_after is None:
        retry_after = UNKNOWN
    return Answered(at, at + 0.001, datacenter, "k", cost, allowed, source, retry_after=retry_after)


def charged(at, cost, source=Source.OWNER):
    return Answered(at, at + 0.001, "dc1", "k", cost, True, source, is_charge=True)


def violations(
    rules, answers, used=None, *, faults=(), datacenters=1, late=(), end=30.0, resets=()
):
    ledger = Ledger()
    name = next(iter(rules))
    for answer in answers:
        ledger.add(name, answer)
    for asked in late:
        ledger.ask(name, "k", asked)
    final = Final({(where, name, "k"): units for where, units in (used or {}).items()})
    final.broken.resets += resets
    scenario = Scenario("judged", "", nodes=6, datacenters=datacenters, faults=tuple(faults))
    invariants = Invariants(rules, scenario, 0.2, 0.0)
    is_timed = any(each.retry_after not in (None, UNKNOWN) for each in answers)
    found = [each.property for each in invariants.violations(ledger, final, end)]
    return [each for each in found if is_timed or each != "retry_after"]


ALL = [answered(1.0), answered(2.0), answered(3.0)]


def borrowed(at, datacenter="dc1"):
    """Return an allowed check whose answer takes a round trip to another data center."""
    return replace(answered(at, datacenter=datacenter), answered_at=at + 0.09)
