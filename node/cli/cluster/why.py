"""`ringfence why`: which rules a request matches, and which of them denies it."""

from collections.abc import Iterator
from functools import partial

import click
from msgspec import Struct

from node.cli.cluster.check import decided_by, keys_hint, node_of, room_left
from node.cli.cluster.cluster_command import ClusterCommand, Query
from node.cli.common import (
    Output,
    cluster_option,
    decision_row,
    descriptor_option,
    json_option,
    need_cluster,
    parse_descriptors,
    printable,
    rule_place,
)
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.decision import Decision, decide
from ringfence.client.limiter import Limiter
from ringfence.errors import ConfigError
from ringfence.rules import Descriptor
from ringfence.rules.unmatched_requests import unknown_domain
from ringfence.wire import Source

__all__ = ["why"]


class _Answer(Struct, frozen=True):
    """Result of one descriptor of the request: its rule and decision."""

    descriptor: Descriptor
    decision: Decision
    node: str | None
    decided_by: str
    """The node that decided, with its role."""
    hint: str
    """Keys of the domain's rules when no rule applies."""

    @property
    def is_shadow(self) -> bool:
        """Whether the matched rule is in shadow mode."""
        return self.decision.rule is not None and self.decision.rule.shadow

    @property
    def is_quota(self) -> bool:
        """Whether the matched rule is in quota mode."""
        return self.decision.rule is not None and self.decision.rule.quota

    @property
    def is_over(self) -> bool:
        """Whether the limit of the rule is used up; this includes shadow rules."""
        return not self.decision.allowed or self.decision.over_shadow


@click.command(cls=ClusterCommand)
@click.argument("domain")
@click.argument("entries", nargs=-1, metavar="[KEY=VALUE]...")
@descriptor_option
@cluster_option
@json_option
def why(
    domain: str,
    entries: tuple[str, ...],
    others: tuple[str, ...],
    cluster: str | None,
    json_: bool,
) -> Query[list[_Answer]]:
    """Print for each descriptor of a request its rule, the remaining units and the deciding member.

    It spends no units. A request is denied when one of its descriptors is denied; rules in quota
    mode deny it only when all of them do. The exit status is 1 then.
    """
    descriptors = parse_descriptors("explain", entries, others)
    ask = partial(_ask, domain, descriptors)
    return Query(need_cluster(cluster), ask, partial(_show, domain, json_), ask_owners=False)


def _show(domain: str, json_: bool, answers: list[_Answer], output: Output) -> None:
    request = decide([status for each in answers for status in each.decision.statuses])
    if json_:
        rows = [_row(each) for each in answers]
        output.json({"domain": domain, "allowed": request.allowed, "descriptors": rows})
    else:
        for line in [line for each in answers for line in _lines(each)]:
            output.line(printable(line))
    if not request.allowed:
        raise SystemExit(1)


async def _ask(domain: str, descriptors: list[Descriptor], cluster: Cluster) -> list[_Answer]:
    """Query the counter of each descriptor separately, without spending units, so that each gets
    its own result."""
    answers = []
    limiter = Limiter(cluster, raise_on_outage=True)
    if problem := unknown_domain(limiter.rules, domain):
        raise ConfigError(problem)
    for descriptor in descriptors:
        decision = await limiter.peek(domain, descriptor)
        [match] = limiter.rules.match(domain, [descriptor])
        node = node_of(cluster, decision, None if match is None else match.key)
        hint = keys_hint(limiter.rules, domain, [descriptor]) if match is None else ""
        by = decided_by(decision, node, cluster.members)
        answers.append(_Answer(descriptor, decision, node, by, hint))
    return answers


def _lines(answer: _Answer) -> Iterator[str]:
    decision = answer.decision
    request = ", ".join(f"{key}={value}" for key, value in answer.descriptor.entries)
    if decision.source is Source.NO_RULE:
        unlimited = next((each.rule for each in decision.statuses if each.rule is not None), None)
        reason = f"rule {rule_place(unlimited)} is unlimited" if unlimited else "no rule applies"
        yield f"{request}: allowed, {reason}"
        if answer.hint:
            yield f"  {answer.hint}"
        return
    verdict = "denied" if answer.is_over else "allowed"
    yield f"{request}: {verdict}{_mode(answer)}"
    yield f"  rule: {rule_place(decision.rule)}"
    yield f"  {room_left(decision)}{_when(decision)}"
    yield f"  decided by: {answer.decided_by}"


def _mode(answer: _Answer) -> str:
    """Describe the mode of the rule, and what a denial in this mode means for the request."""
    if answer.is_shadow:
        return (
            ", but only in shadow mode: the request passes" if answer.is_over else ", shadow mode"
        )
    if answer.is_quota:
        only = ": only denials by all rules in quota mode deny the request"
        return f", quota mode{only if answer.is_over else ''}"
    return ""


def _when(decision: Decision) -> str:
    """Describe when the request will be allowed again."""
    if decision.limit == 0:
        return "; the limit admits nothing"
    return f"; retry after {decision.retry_after:.3f} s" if decision.retry_after else ""


def _row(answer: _Answer) -> dict[str, object]:
    row = {"descriptor": [list(entry) for entry in answer.descriptor.entries]}
    modes = {"shadow": answer.is_shadow, "quota": answer.is_quota}
    return row | decision_row(answer.decision) | {"node": answer.node} | modes
