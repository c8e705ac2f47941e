"""`ringfence check`: send one check to a running cluster."""

import difflib
import shlex
from collections.abc import Sequence
from functools import partial

import click
from msgspec import Struct

from hashring import Member, NodeId, Ring, shard_of
from node.cli.cluster.cluster_command import ClusterCommand, Query
from node.cli.common import (
    IntegerRange,
    Output,
    cluster_option,
    decision_row,
    descriptor_option,
    json_option,
    need_cluster,
    parse_descriptors,
    rule_place,
)
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.cluster.view_refresh import ROUTED_STATES
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError
from ringfence.peering.routing import Routes
from ringfence.rules import Descriptor, RuleSet, encode_key, format_limit
from ringfence.rules.unmatched_requests import in_another_order, known_paths, unknown_domain
from ringfence.wire import MemberRow, Source

__all__ = ["check", "decided_by", "keys_hint", "name_of_decider", "node_of", "room_left"]

_MAX_PLACES = 8
"""Maximum number of key paths in a hint."""


@click.command(cls=ClusterCommand)
@click.argument("domain")
@click.argument("entries", nargs=-1, metavar="[KEY=VALUE]...")
@descriptor_option
@click.option("--cost", type=IntegerRange(0), help="Units to spend or give back; 1 when absent.")
@click.option("--peek", is_flag=True, help="Report the state without spending units.")
@click.option("--charge", is_flag=True, help="Spend the cost even beyond the limit.")
@click.option(
    "--refund",
    is_flag=True,
    help="Give the cost back. Without the scope `refund`, name the node that received the check.",
)
@click.option("--reset", is_flag=True, help="Forget the counters.")
@click.option(
    "--limit",
    metavar="LIMIT",
    help='An ad-hoc limit such as "100/minute"; its key is DOMAIN, then each KEY and its VALUE.',
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail when no rule of the domain applies; else allow it.",
)
@cluster_option
@json_option
def check(
    domain: str,
    entries: tuple[str, ...],
    others: tuple[str, ...],
    cost: int | None,
    peek: bool,
    charge: bool,
    refund: bool,
    reset: bool,
    limit: str | None,
    strict: bool,
    cluster: str | None,
    json_: bool,
) -> "Query[_Answer]":
    """Check one request through a node of the cluster, which forwards keys that other nodes own.

    KEY=VALUE words form one descriptor, in order. They may be absent when -d gives a descriptor.
    With --limit no rule applies: `check api client=x --limit 5/s` counts by the key `api`,
    `client`, `x`, as `limiter.check_limit("5/s", "api", "client", "x")` does.
    """
    verb = _verb_of(peek=peek, charge=charge, refund=refund, reset=reset)
    if cost is not None and verb in ("peek", "reset"):
        raise ConfigError(f"--{verb} must be used without --cost: it spends no units")
    if limit is not None and others:
        raise ConfigError("--limit must be used without --descriptor: it counts by one key")
    if limit is not None and strict:
        raise ConfigError("--strict must be used without --limit: with --limit, no rule applies")
    descriptors = parse_descriptors("check", entries, others)
    spent = 1 if cost is None else cost

    def show(answer: _Answer, output: Output) -> None:
        if strict and answer.hint:
            raise ConfigError(
                f"no rule applies to this request, and --strict is set; {answer.hint}"
            )
        _show(answer, output, json_, spent, _DONE.get(verb, ""))

    ask = partial(_check, domain, descriptors, spent, verb, limit)
    return Query(need_cluster(cluster), ask, show, ask_owners=False)


def _verb_of(**chosen: bool) -> str:
    """Return the operation that the flags choose; `check` without such a flag."""
    verbs = [verb for verb, is_chosen in chosen.items() if is_chosen]
    if len(verbs) > 1:
        options = " and ".join(f"--{verb}" for verb in verbs)
        raise ConfigError(f"{options} do not go together; choose one")
    return verbs[0] if verbs else "check"


class _Answer(Struct, frozen=True):
    """Decision of a check, with the deciding member and a hint about the rules' keys."""

    decision: Decision
    node: str | None
    """The member that decided, as the client sees the rings; None when no member did."""
    hint: str = ""
    """Keys of the domain's rules when no rule applied."""


async def _check(
    domain: str,
    descriptors: list[Descriptor],
    cost: int,
    verb: str,
    limit: str | None,
    cluster: Cluster,
) -> _Answer:
    limiter = Limiter(cluster, raise_on_outage=True)
    if limit is not None:
        words = [domain, *(word for entry in descriptors[0].entries for word in entry)]
        decision = await _do_limit(limiter, verb, limit, words, cost)
        key = None if decision.rule is None else encode_key(decision.rule.id, words)
        return _Answer(decision, node_of(cluster, decision, key))
    if problem := unknown_domain(limiter.rules, domain):
        raise ConfigError(problem)
    decision = await _do(limiter, verb, domain, descriptors, cost)
    met = [match for match in limiter.rules.match(domain, descriptors) if match is not None]
    rule = decision.rule
    key = next((each.key for each in met if rule is not None and each.rule.id == rule.id), None)
    hint = "" if met else keys_hint(limiter.rules, domain, descriptors)
    return _Answer(decision, node_of(cluster, decision, key), hint)


def node_of(cluster: Cluster, decision: Decision, key: bytes | None) -> str | None:
    """Return the name of the member that decided, according to the client's view of the rings."""
    if cluster.routes is None or key is None:
        return None
    return name_of_decider(cluster.routes, cluster.members, decision, key)


def name_of_decider(
    routes: Routes, members: Sequence[MemberRow], decision: Decision, key: bytes
) -> str | None:
    """Return the owner or standby of a key, whichever decided; None for other sources."""
    rule = decision.rule
    ring = routes.ring
    if rule is not None and rule.scope == "home":
        # The asked node forwards such a check to the home data center.
        ring = _ring_of(members, rule.home)
    if not ring.owner_by_shard:
        return None
    match decision.source:
        case Source.OWNER:
            return ring.owner(shard_of(key))
        case Source.STANDBY:
            return ring.standby(shard_of(key))
        case _:
            return None


def _ring_of(members: Sequence[MemberRow], datacenter: str) -> Ring:
    return Ring.of(
        Member(NodeId(row.name), row.datacenter, row.zone, row.weight)
        for row in members
        if row.datacenter == datacenter and row.state in ROUTED_STATES
    )


def decided_by(decision: Decision, node: str | None, members: Sequence[MemberRow]) -> str:
    """Describe the node that decided, for people."""
    rule, role = decision.rule, str(decision.source)
    if node is None:
        return role
    if rule is not None and rule.scope == "home":
        return f"node {node}, its {role} in data center {rule.home}, the home of the rule"
    if rule is not None and rule.scope == "split" and len({row.datacenter for row in members}) > 1:
        # An answer does not show which data center lent the units.
        return f"node {node}, its {role}, or a node of another data center that lent units"
    return f"node {node}, its {role}"


def keys_hint(rules: RuleSet, domain: str, descriptors: list[Descriptor]) -> str:
    """Describe which keys the rules of a domain have, and suggest the most similar one."""
    places = {
        " > ".join(key for key, _ in rule.path): None
        for rule in rules.rules()
        if rule.domain == domain
    }
    keys = {key: None for place in places for key in place.split(" > ")}
    words = [f"rules of {domain!r} have the keys {', '.join(list(places)[:_MAX_PLACES])}"]
    if len(places) > _MAX_PLACES:
        words[0] += f" and {len(places) - _MAX_PLACES} more"
    known = known_paths(rules, domain)
    for each in descriptors:
        path = tuple(key for key, _ in each.entries)
        if ordered := in_another_order(known, path):
            words.append(f"the order of the keys counts: did you mean {ordered!r}?")
        elif path not in known and all((key,) in known for key in path):
            first, *others = [shlex.quote(f"{key}={value}") for key, value in each.entries]
            separate = " ".join([first, *(f"-d {other}" for other in others)])
            words.append(
                f"one descriptor with {' and '.join(path)} needs a nested rule "
                f"{' > '.join(path)!r}; to send a descriptor for each key, write {separate}"
            )
    for key in {key: None for each in descriptors for key, _ in each.entries if key not in keys}:
        close = difflib.get_close_matches(key, keys, 1)
        if close:
            words.append(f"no rule has the key {key!r}: did you mean {close[0]!r}?")
    return "; ".join(words)


async def _do(
    limiter: Limiter, verb: str, domain: str, descriptors: list[Descriptor], cost: int
) -> Decision:
    match verb:
        case "charge":
            return await limiter.charge(domain, descriptors, cost)
        case "refund":
            return await limiter.refund(domain, descriptors, cost)
        case "reset":
            return await limiter.reset(domain, descriptors)
        case _:
            return await limiter.check(domain, descriptors, 0 if verb == "peek" else cost)


async def _do_limit(limiter: Limiter, verb: str, limit: str, key: list[str], cost: int) -> Decision:
    match verb:
        case "charge":
            return await limiter.charge_limit(limit, *key, cost=cost)
        case "refund":
            return await limiter.refund_limit(limit, *key, cost=cost)
        case "reset":
            return await limiter.reset_limit(limit, *key)
        case _:
            cost = 0 if verb == "peek" else cost
            return await limiter.check_limit(limit, *key, cost=cost)


_DONE = {"charge": "charged", "refund": "refunded", "reset": "reset"}
"""Operations that are never denied, whatever remains afterwards."""


def _show(answer: _Answer, output: Output, json_: bool, cost: int, done: str) -> None:
    decision = answer.decision
    if json_:
        output.json(decision_row(decision) | {"node": answer.node, "hint": answer.hint or None})
    elif done and decision.rule is not None:
        if done == _DONE["charge"] and not decision.allowed:
            output.line(f"charged beyond the limit: {room_left(decision)}; {_debt(decision)}")
        else:
            output.line(f"{_what_was_done(decision, cost, done)}: {room_left(decision)}")
    elif decision.source is Source.NO_RULE:
        output.line(f"allowed: {_why_free(answer)}")
    elif decision.allowed:
        mark = f", in its turn after {decision.delay:.2f} s" if decision.delay else ""
        mark += " (over the limit, inside its soft margin)" if decision.over_soft else ""
        mark += " (a shadow rule would have denied it)" if decision.over_shadow else ""
        output.line(f"allowed{mark}: {room_left(decision)}")
    elif decision.limit == 0:
        output.line(f"denied: the limit {_limit(decision)} admits nothing")
    elif decision.retry_after is None:
        is_part = decision.rule is not None and decision.rule.scope == "split"
        most = f"one data center's part ({decision.limit}) of " if is_part else ""
        limit = f"{most}{_limit(decision)}"
        output.line(f"denied permanently: cost {cost} is more than {limit} ever admits at once")
    else:
        output.line(f"denied by {_limit(decision)}: retry after {decision.retry_after:.3f} s")
    if not (decision.allowed or done):
        raise SystemExit(1)


def _what_was_done(decision: Decision, cost: int, done: str) -> str:
    """Describe an operation that is never denied, with the units that a refund gave back."""
    units = decision.refunded
    if units is None or not cost:
        return done
    if not units:
        return f"{done} nothing, because no units were spent, or the token may not refund them"
    part = f"{units} of {cost}" if units < cost else str(units)
    return f"{done} {part} {'unit' if cost == 1 else 'units'}"


def _debt(decision: Decision) -> str:
    """Describe for how long an overdrawn limit denies checks."""
    if decision.retry_after is None:
        return "the limit admits nothing"
    return f"checks are denied for {decision.retry_after:.3f} s, until the debt is repaid"


def room_left(decision: Decision) -> str:
    """Describe the remaining units of a counter, and how many an unused counter has."""
    limit = decision.rule.limit if decision.rule is not None else None
    if decision.remaining is None:
        return f"an unknown number of units left of {_limit(decision)}"
    if limit is None or not limit.is_bucket:
        return f"{decision.remaining} left of {_limit(decision)}"
    if limit.queue:
        return f"room for {decision.remaining} of {limit.bucket_size} in the queue"
    return f"{decision.remaining} of {limit.bucket_size} left in the bucket of {_limit(decision)}"


def _why_free(answer: _Answer) -> str:
    """Describe why no rule applied to the request."""
    for status in answer.decision.statuses:
        if status.rule is not None:
            return f"the rule {rule_place(status.rule)} is unlimited"
    return "; ".join(filter(None, ["no rule applies to this request", answer.hint]))


def _limit(decision: Decision) -> str:
    rule = decision.rule
    if rule is not None and rule.limit is not None:
        return format_limit(rule.limit)
    return str(decision.limit)
