"""Histories of a few keys: their requests, and the nodes that held their shards."""

import re
from collections.abc import Iterable, Sequence

from hashring import shard_of
from node.shards.ownership.ownership_table import COVERING, State
from ringfence.limiter import Limit
from ringfence.wire import Source
from simulations.judging.ledger import Answered, Ledger
from simulations.reporting.outcome import KeyHistory, Request, Span, Violation
from simulations.world.hosts import Hosts
from simulations.world.named_rules import NamedRules
from simulations.world.ownership_watch import OwnershipWatch

__all__ = ["key_histories", "keys_of"]

_MAX_HISTORIES = 6
_SUBJECT = re.compile(r"([a-z][\w-]*)=([^\s:,]+)|^(\S+) (?:was decided|waited)\b")
"""Rule and key in the text of a violation, or the key alone."""
_COVERING = tuple(state.name for state in COVERING)
_OWNING = (State.OWNED.name, State.FRESH.name)
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
    watch: OwnershipWatch,
) -> list[KeyHistory]:
    """Return the histories of the keys that violations name, and of the most frequent key."""
    judged = keys_of(violations, ledger)
    places = [*judged]
    for rule in {rule: None for rule, _ in ledger.answers}:
        places += [(rule, key) for key in ledger.keys(rule)[:1]]
        break
    found = []
    for rule, key in dict.fromkeys(places[:_MAX_HISTORIES]):
        match = rules.match(rule, key)
        if match is None or match.rule.limit is None:
            continue
        shard = shard_of(match.key)
        states = watch.spans_of(shard, hosts.began, hosts.now)
        column = ledger.column(rule, key)
        home = match.rule.home if match.rule.scope == "home" else None
        found.append(
            KeyHistory(
                rule,
                key,
                _text_of(match.rule.limit),
                (rule, key) in judged,
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
        _decider(answer, states, hosts, home or answer.datacenter),
        "charge" if answer.is_charge else "peek" if answer.is_uncounted else "check",
    )


def _decider(answer: Answered, states: list[Span], hosts: Hosts, datacenter: str) -> str:
    """Return the only node that can have decided a check; empty when there are several."""
    if answer.source not in _BY_NODE:
        return ""
    usual = _OWNING if answer.source is Source.OWNER else _COVERING
    holding = {
        span.row: span.state in usual
        for span in states
        if span.start <= answer.answered_at
        and answer.asked_at <= span.end
        and hosts.by_name[span.row].datacenter == datacenter
        and span.state in (*_OWNING, *_COVERING)
    }
    likely = [node for node, is_usual in holding.items() if is_usual] or [*holding]
    return likely[0] if len(likely) == 1 else ""
