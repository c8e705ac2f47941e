"""One request on its way through an application, and what limiters have said of it so far.

A request may meet several limits: those of the middleware, those of its view. Each adds its
decision here, so that the answer gets one set of headers, written when it starts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringfence.client.decision import Decision, decide
from ringfence.http import Body, HeaderStyle, LimitHeaders, Refused, Request, Template, refused_body
from ringfence.http.headers import OUTAGE_HEADER

if TYPE_CHECKING:
    from ringfence.integrations._core.policy import Spent

__all__ = ["Refusal", "RequestState"]

_REFUSALS = (429, 503)
_ONCE = ("Cache-Control", "Retry-After")
"""Fields that a refusal keeps as the application wrote them."""
_WAITS = ("Retry-After", "X-RateLimit-Retry-After")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer to send in place of the application's, but for the limit headers."""

    refused: Refused
    body: Body

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What goes with the body; `RequestState.headers` has those of limits, for every answer."""
        return [
            ("Content-Type", self.body.content_type),
            ("Content-Length", str(len(self.body.content))),
            ("Cache-Control", "no-store"),
        ]


@dataclass(slots=True)
class RequestState:
    """What has been decided about one request."""

    request: Request
    decisions: list[Decision] = field(default_factory=list)
    spent: "list[Spent]" = field(default_factory=list)
    """What may have to be given back or added when the answer is known."""
    has_failed: bool = False
    """A limiter failed, and the request was let through."""
    told_cost: int | None = None
    """What the application has told by `set_cost`."""

    @property
    def decision(self) -> Decision | None:
        """Everything decided so far as one decision; None when nothing limits."""
        if not self.decisions:
            return None
        if len(self.decisions) == 1:
            return self.decisions[0]
        return decide([status for each in self.decisions for status in each.statuses])

    def refuse(self, template: Template | None) -> Refusal:
        """Make the answer to a request that was denied."""
        refused = Refused.of(self.decisions[-1], self.request.header("accept"))
        return Refusal(refused, refused_body(refused, template))

    def headers(
        self, style: LimitHeaders, status: int, present: Iterable[str]
    ) -> list[tuple[str, str]]:
        """The header fields that tell of limits, for an answer of this status.

        A refusal is not to be kept by caches, whoever wrote it. `present` are the names of the
        fields that the answer has already; they are looked at for refusals only.
        An application may turn a refusal into an answer of its own; a wait is then no part of it,
        since clients would wait after a success.
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
