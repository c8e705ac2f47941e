"""State of one request: the decisions about it so far, the charges to correct, and the rate limit
headers.

Several limits may apply to a request: those of the middleware and of its view. Each adds its
decision here, so that the response gets one set of headers.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct, field

from ringfence.client.decision import Decision, decide
from ringfence.errors import ConfigError
from ringfence.http import (
    Body,
    HeaderStyle,
    LimitHeaders,
    Refused,
    Request,
    Template,
    refused_body,
)
from ringfence.http.callback_checks import require_answer
from ringfence.http.headers import OUTAGE_HEADER
from ringfence.integrations._core.effects import CheckSpec, Refusal, Steps
from ringfence.integrations._core.settings import Response

__all__ = ["Charged", "RequestState", "Spent"]

_REFUSALS = (429, 503)
_ONCE = ("Cache-Control", "Retry-After")
"""Fields of a refusal that the application may set itself."""
_WAITS = ("Retry-After", "X-RateLimit-Retry-After")


class Spent(Struct):
    """Allowed check whose charge may be corrected after the response."""

    settle: "Callable[[Spent, Request, Response], Steps] | None"
    """Settles the check after the response; None when nothing is to be settled."""
    owner: object
    ask: CheckSpec
    cost: int
    decision: Decision
    asked_at: float
    """Time just before the check, by the clock of the policy."""


class Charged(Struct):
    """Allowed check of a request. An equal check of another policy is not made again."""

    policy: object
    check: tuple[object, ...]
    """Counter, cost and corrections of the check."""


class RequestState(Struct):
    """All decisions and charges of one request."""

    request: Request
    decisions: list[Decision] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    """Open charges, which the response may still change."""
    charged: list[Charged] = field(default_factory=list)
    """All allowed checks of the request."""
    passed: list[object] = field(default_factory=list)
    """Owners of the middlewares that have checked the request."""
    has_failed: bool = False
    """Whether a limiter failed, so that the request was allowed."""
    reported_cost: int | None = None
    """Cost that the application reported by `set_cost`."""

    @property
    def decision(self) -> Decision | None:
        """Combination of all decisions about the request so far; None when there is none."""
        if not self.decisions:
            return None
        if len(self.decisions) == 1:
            return self.decisions[0]
        return decide([status for each in self.decisions for status in each.statuses])

    def has_charged(self, other: Charged) -> bool:
        """Whether another policy has made an equal check.

        A policy that runs again for the same request, for example in a view that is called twice,
        charges again.
        """
        return any(
            [each.check == other.check and each.policy is not other.policy for each in self.charged]
        )

    def refuse(self, template: Template | None) -> Refusal:
        """Create the refusal that is sent for the denied request."""
        refused = Refused.of(self.decisions[-1], self.request.header("accept"))
        return Refusal(refused, _body(refused, template))

    def headers(
        self, style: LimitHeaders, status: int, present: Iterable[str]
    ) -> list[tuple[str, str]]:
        """Return the rate limit headers for a response with this status code.

        A refusal also gets `Cache-Control: no-store`. `present` are the names of the headers that
        the response already has; they are read for refusals only. When the application has replaced
        a refusal by another status, headers with a wait are omitted: clients would wait after a
        success.
        """
        decision = self.decision
        if decision is None:
            fields = []
        else:
            fields = style.of(decision)
            if not decision.allowed and status not in _REFUSALS:
                fields = [each for each in fields if each[0] not in _WAITS]
            elif not decision.allowed:
                has = {name.lower() for name in present}
                fields = [*fields, ("Cache-Control", "no-store")]
                fields = [
                    each for each in fields if each[0] not in _ONCE or each[0].lower() not in has
                ]
        if self.has_failed and style.style is not HeaderStyle.NONE:
            fields = [each for each in fields if each[0] != OUTAGE_HEADER]
            fields.append((OUTAGE_HEADER, "allow"))
        return fields


def _body(refused: Refused, template: Template | None) -> Body:
    """Create the body of a refusal. Raises `ConfigError` for an invalid result of the template."""
    if template is None:
        return refused_body(refused)
    made: object = require_answer("template", template(refused))
    if not (made is None or isinstance(made, str | Body)):
        raise ConfigError(
            f"template must return text, a Body or None, got {made!r}; for JSON, return "
            "Body('application/json', json.dumps(...).encode())"
        )
    if isinstance(made, Body) and not isinstance(made.content, bytes):
        raise ConfigError(
            f"content of the Body that template returns must be bytes, got {made.content!r}; "
            "encode it, for example with .encode()"
        )
    return refused_body(refused, lambda _: made)
