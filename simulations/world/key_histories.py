"""Histories of a few keys: their requests, and the nodes that held their shards."""

import re
from collections.abc import Iterable, Sequence

from hashring import shard_of
from node.shards.ownership.ownership_table import COVERING, State
from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Rule
from ringfence.wire import Source
from simulations.judging.invariants import Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.reporting.outcome import KeyHistory, Request, Span, Violation
from simulations.world.hosts import Hosts
from simulations.world.named_rules import NamedRules
from simulations.world.over_limit import Excess, excess_of
from simulations.world.watches.shard_watch import ShardWatch

__all__ = ["key_histories", "keys_of"]

_MAX_HISTORIES = 6
_MAX_SEARCHED = 20
"""Keys among which a shard that changed is searched, the most frequent ones."""
_SUBJECT = re.compile(r"([a-z][\w-]*)=([^\s:,]+)|^(\S+) (?:was decided|waited)\b")
"""Rule and key in the text of a violation, or the key alone."""
_COVERING = tuple(state.name for state in COVERING)
_OWNING = (State.OWNED.name, State.FRESH.name)
_EXACT = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.CONCURRENCY)
"""Algorithms that never admit more than the limit in one period."""
_BY_NODE = (Source.OWNER, Source.STANDBY)


def keys_of(violations: Iterable[Violation], ledger: Ledger) -> list[tuple[str, str]]:
    """Return rule and key of the keys that the violations name, in order."""
    known = {(rule, answer.key): None for rule, answer in ledger.answers}
    found: dict[tuple[str, str], None] = {}
    for violation in violations:
        for rule, key, alone in _SUBJECT.findall(violation.text):
            places = [place for place in known if place == (rule, key) or place[1] == alone]
            found |= dict.fromkeys(places[:1])
    return list(found)


def key_histories(
    violations: Sequence[Violation],
    ledger: Ledger,
    rules: NamedRules,
    hosts: Hosts,
    watch: ShardWatch,
    invariants: Invariants,
    worst: Excess,
) -> list[KeyHistory]:
    """Return the histories of some keys.

    These are the keys that violations name, the key with the most units over its limit (`worst`),
    and a frequent key of the first rule.
    """
    judged = keys_of(violations, ledger)
    places = [*judged]
    places += [worst.subject] if worst.subject else []
    for first, _ in ledger.answers[:1]:
        places.append((first, _telling_key(first, ledger, rules, hosts, watch)))
    found = []
    for rule, key in dict.fromkeys(places[:_MAX_HISTORIES]):
        match = rules.match(rule, key)
        if match is None or match.rule.limit is None:
            continue
        shard, limit = shard_of(match.key), match.rule.limit
        states = watch.spans_of(shard, hosts.began, hosts.now)
        column = ledger.column(rule, key)
        home = match.rule.home if match.rule.scope == "home" else None
        excess = excess_of(match.rule, (rule, key), column)
        found.append(
            KeyHistory(
                rule,
                key,
                _text_of(limit),
                limit.period_ns / 1e9,
                (rule, key) in judged,
                excess.units,
                _bound(match.rule, excess, invariants, hosts),
                "exact" if limit.algorithm in _EXACT else limit.algorithm.name.lower(),
                match.rule.scope == "global",
                [
                    _request(answer, states, hosts, home)
                    for answer in sorted(
                        [*column.answers, *column.refunded], key=lambda a: (a.asked_at, a.client)
                    )
                ],
                states,
                watch.changes_of(shard, hosts.began),
            )
        )
    return found


def _telling_key(
    rule: str, ledger: Ledger, rules: NamedRules, hosts: Hosts, watch: ShardWatch
) -> str:
    """Return the most frequent key whose shard changed during the run; otherwise the most frequent
    key."""
    keys = ledger.keys(rule)
    for key in keys[:_MAX_SEARCHED]:
        match = rules.match(rule, key)
        changes = [] if match is None else watch.changes_of(shard_of(match.key), hosts.began)
        if any(change.at > 0 and change.before != change.after for change in changes):
            return key
    return keys[0]


def _bound(rule: Rule, excess: Excess, invariants: Invariants, hosts: Hosts) -> int | None:
    """Return how many units over the limit the invariant allows; None without an excess."""
    assert rule.limit is not None
    if excess.part is None:
        return None
    return invariants.bound(rule, excess.part, hosts.now) - rule.limit.ceiling


def _text_of(limit: Limit) -> str:
    algorithm = limit.algorithm.name.lower()
    return f"{limit.ceiling} in {limit.period_ns / 1e9:g} s, {algorithm}"


def _request(answer: Answered, states: list[Span], hosts: Hosts, home: str | None) -> Request:
    return Request(
        answer.asked_at,
        answer.answered_at,
        answer.client,
        answer.cost,
        answer.allowed,
        answer.source.name.lower(),
        tuple(_deciders(answer, states, hosts, home or answer.datacenter)),
        "charge" if answer.is_charge else "peek" if answer.is_uncounted else "check",
    )


def _deciders(answer: Answered, states: list[Span], hosts: Hosts, datacenter: str) -> list[str]:
    """Return the nodes that can have decided a check, which is usually one.

    A node whose ring lacks the owner answers as the owner, so both sides of a partition may do it.
    """
    if answer.source not in _BY_NODE:
        return []
    holding = {
        span.row: span.state in _COVERING
        for span in states
        if span.start <= answer.answered_at
        and answer.asked_at <= span.end
        and hosts.by_name[span.row].datacenter == datacenter
        and span.state in (*_OWNING, *_COVERING)
    }
    covering = [node for node, is_covering in holding.items() if is_covering]
    found = covering if covering and answer.source is Source.STANDBY else [*holding]
    return sorted(found, key=lambda name: (len(name), name))
