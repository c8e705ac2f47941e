"""Support for the local caches of clients: recorded denials, leases, and reported decisions."""

from node.context.node_context import NodeContext
from node.metrics.detailed import MetricsSwitch
from node.requests.client_reports import Reports, reported_counter
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.handler import RequestHandler
from node.requests.leases.lease_grants import Lender
from node.requests.sessions.access_control import AccessControl
from node.requests.sessions.caller import Caller
from ringfence.limiter import Code
from ringfence.wire import (
    Batch,
    DenialRevoked,
    LeaseGrant,
    LeaseRequest,
    Report,
    Results,
)

__all__ = ["ClientCaches"]

_DENIED = Code.DENIED.value


class ClientCaches:
    """Keeps the local caches of one node's clients consistent with the node's counters."""

    def __init__(
        self,
        node: NodeContext,
        lender: Lender[Caller],
        subscriptions: DenialSubscriptions[Caller],
        handler: RequestHandler,
        access: AccessControl,
        metrics: MetricsSwitch,
    ) -> None:
        self._now = node.clock.now
        self._counters = node.counters
        self._lender = lender
        self._subscriptions = subscriptions
        self._handler = handler
        self._access = access
        self._metrics = metrics
        self._reports = Reports()

    def subscribe(self, session: Caller) -> None:
        """Subscribe a client that caches denials to notices of denials that end early."""
        self._subscriptions.subscribe(session)

    def record_denials(self, session: Caller, batch: Batch, results: Results) -> None:
        """Record the denials of a client that caches them; queue its denied checks that wait for a
        slot."""
        if not batch.slot_ids and _DENIED not in results.outcomes.codes:
            return
        now = self._now()
        self._subscriptions.on_denied(session, batch, results, now)
        if batch.slot_ids:
            self._handler.slots.on_answered(session, batch, results, now)

    def revoke_denials(self, session: Caller) -> None:
        """Revoke all denials of this node that the client may have cached."""
        if self._subscriptions.is_subscribed(session):
            session.send(DenialRevoked([]))

    def lend(self, session: Caller, borrow: LeaseRequest) -> LeaseGrant:
        """Grant a client a lease of a key, and charge the units that it spent from its ended
        leases."""
        lent = self._lender.lend(
            session,
            borrow,
            self._now(),
            is_ours=self._handler.placement.may_lend(borrow.key),
        )
        if lent.units:
            self._counters.add("leases")
        self._counters.add("lease_spent", sum(borrow.spent))
        return lent

    def record_report(self, name: str, report: Report) -> None:
        """Count decisions that a client made itself, only once for each report; `name` is the name
        of its token."""
        counters = self._counters
        if not self._reports.is_new(name, report):
            counters.add("repeated_reports")
            return
        counters.add("reports")
        rows = zip(report.keys, report.codes, report.sources, report.counts, strict=True)
        taken, named = [], 0
        for at, row in enumerate(rows):
            if self._access.domain_error(name, [row[0]]) is not None:
                counters.refused("report_domain")
                continue
            taken.append(row)
            named += at < report.named
            counters.add(reported_counter(row[1], row[2]), row[3])
        if self._metrics.active is not None:
            self._metrics.active.reported(taken, named)
