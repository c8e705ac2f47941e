"""Name of the node that decided a check, for rules of one and of several data centers."""

from collections.abc import Sequence

from hashring import Member, NodeId, Ring, shard_of
from node.cli.cluster.check import decided_by, name_of_decider
from ringfence.client.decision import Decision
from ringfence.limiter import Code
from ringfence.peering.routing import Routes
from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import MemberRow, OutcomeRow, Source
from tests.node.cluster import counter

RULES = """
domain: api
descriptors:
  - key: near
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: home
    rate_limit: {unit: hour, requests_per_unit: 5, global: {mode: home, home: eu}}
  - key: here
    rate_limit: {unit: hour, requests_per_unit: 5, global: {mode: home, home: us}}
  - key: nowhere
    rate_limit: {unit: hour, requests_per_unit: 5, global: {mode: home, home: mars}}
  - key: part
    rate_limit: {unit: hour, requests_per_unit: 6, global: {mode: split}}
"""
LOADED: RuleSet = load_text(RULES).rules


def member(name: str, datacenter: str, state: str = "alive") -> MemberRow:
    return MemberRow(name, "127.0.0.1", 7101, datacenter, "", 1.0, state)


ROWS = [member("e1", "eu"), member("e2", "eu"), member("u1", "us"), member("u2", "us")]


def ring_of(datacenter: str) -> Ring:
    return Ring.of(
        Member(NodeId(row.name), datacenter) for row in ROWS if row.datacenter == datacenter
    )


def decided(key: str, source: Source, rows: Sequence[MemberRow] = ROWS) -> tuple[str | None, str]:
    """Return the name and the description of the node that decided, for a client in `us`."""
    routes = Routes(ring_of("us"), {})
    [rule] = [each for each in LOADED.rules() if each.path == ((key, None),)]
    row: OutcomeRow = (Code.ALLOWED.value, 5, 4, 0, 0, 0, 0, source.value)
    decision = Decision(rule, row)
    name = name_of_decider(routes, rows, decision, counter(LOADED, key, "x"))
    return name, decided_by(decision, name, rows)


def test_a_key_of_the_own_data_center_has_its_owner_and_standby_there() -> None:
    shard = shard_of(counter(LOADED, "near", "x"))
    owner, standby = ring_of("us").owner(shard), ring_of("us").standby(shard)

    assert decided("near", Source.OWNER) == (owner, f"node {owner}, its owner")
    assert decided("near", Source.STANDBY) == (standby, f"node {standby}, its standby")
    assert decided("near", Source.POLICY) == (None, str(Source.POLICY))


def test_a_key_of_a_home_rule_has_its_owner_and_standby_in_the_home_data_center() -> None:
    shard = shard_of(counter(LOADED, "home", "x"))
    owner, standby = ring_of("eu").owner(shard), ring_of("eu").standby(shard)
    where = "in data center eu, the home of the rule"

    assert decided("home", Source.OWNER) == (owner, f"node {owner}, its owner {where}")
    assert decided("home", Source.STANDBY) == (standby, f"node {standby}, its standby {where}")
    assert decided("here", Source.OWNER)[0] in ("u1", "u2")


def test_only_members_in_the_ring_decide_a_key_of_a_home_rule() -> None:
    rows = [member("e1", "eu", "dead"), member("e2", "eu", "left"), member("e3", "eu", "leaving")]

    assert decided("home", Source.OWNER, rows)[0] == "e3"
    assert decided("home", Source.OWNER, rows[:2]) == (None, "owner")
    assert decided("nowhere", Source.OWNER) == (None, "owner")


def test_units_of_a_split_rule_may_come_from_another_data_center() -> None:
    name, text = decided("part", Source.OWNER)
    _, alone = decided("part", Source.OWNER, [row for row in ROWS if row.datacenter == "us"])

    assert text == f"node {name}, its owner, or a node of another data center that lent units"
    assert alone == f"node {name}, its owner"
