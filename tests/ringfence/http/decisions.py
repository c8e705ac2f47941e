"""Builders of decisions for tests."""

from msgspec.structs import replace

from ringfence import Decision, Rule, Source, Status, parse_limit
from ringfence.client.decision import decide
from ringfence.rules import OnFailure, rule_id


def rule(
    name: str, limit: str = "100/minute", *, shadow: bool = False, on_failure: str = "allow"
) -> Rule:
    return Rule(
        id=rule_id("api", ((name, None),)),
        domain="api",
        path=((name, None),),
        limit=parse_limit(limit),
        shadow=shadow,
        on_failure=OnFailure(on_failure),
    )


def allowed(
    limiting_rule: Rule,
    remaining: int = 50,
    reset_after: float = 30.0,
    source: Source = Source.OWNER,
) -> Status:
    assert limiting_rule.limit is not None
    return Status(
        True, limiting_rule, limiting_rule.limit.amount, remaining, 0.0, reset_after, 0.0, source
    )


def denied(
    limiting_rule: Rule,
    retry_after: float | None = 12.0,
    reset_after: float = 40.0,
    source: Source = Source.OWNER,
    remaining: int = 0,
) -> Status:
    status = allowed(limiting_rule, remaining, reset_after, source)
    return replace(status, allowed=False, retry_after=retry_after)


def answer(*statuses: Status) -> Decision:
    return decide(statuses)
