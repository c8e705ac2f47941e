"""Client of a cluster: routes each check to the owner of its key.

The client receives members and rules from any node. `view_refresh` keeps both current, and `links`
holds the connections. Slots, leases and reports have their own modules.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

from ringfence import runtime
from ringfence.client.cluster.admin import ClusterAdmin
from ringfence.client.cluster.links import Links
from ringfence.client.cluster.own_thread import OwnThread
from ringfence.client.cluster.rules_version import ClusterRules
from ringfence.client.cluster.settings import ClusterSettings
from ringfence.client.cluster.view_refresh import ROUTED_STATES, ViewRefresher
from ringfence.client.decider import is_never_denying
from ringfence.client.local_cache.decision_counts import DecisionCounts
from ringfence.client.local_cache.decision_reports import DecisionReports
from ringfence.client.local_cache.lease_requests import LeaseRequests
from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.client.local_cache.report_loop import ReportLoop
from ringfence.client.requests.check_ops import Matches
from ringfence.client.slots.slot_renewal import SlotRenewer
from ringfence.client.slots.slot_waits import SlotWaits
from ringfence.errors import AccessDenied, RingfenceError
from ringfence.limiter import Code
from ringfence.peering.clock import Clock
from ringfence.peering.link import Link, PeerLeaving
from ringfence.peering.routing import Router, Routes
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.peering.slot_queue import ASK_AGAIN_NS
from ringfence.rules import OnFailure, Rule, RuleSet
from ringfence.transport.interface import Address, Transport
from ringfence.wire import Batch, Hello, MemberRow, Op, OutcomeRow, Results, Source

__all__ = ["Cluster", "ClusterSettings"]

logger = logging.getLogger("ringfence.client")

_ALLOWED, _LEASE = Code.ALLOWED.value, Source.LEASE.value


def _ignore_rules(rules: RuleSet) -> None:
    """Do nothing with new rules, because the caller gave no `on_rules` callback."""


class Cluster:
    """Client of a cluster; it implements the `Decider` behind `ringfence.connect`."""

    on_failure: OnFailure
    """Policy for checks of which no rule is known."""

    def __init__(
        self,
        transport: Transport,
        seeds: Sequence[Address],
        hello: Hello,
        settings: ClusterSettings,
        clock: Clock,
        random: Random,
        rules: RuleSet | None = None,
        on_rules: Callable[[RuleSet], None] = _ignore_rules,
    ) -> None:
        """`rules` replace the rules of the cluster; `on_rules` receives the rules that nodes
        send."""
        self._random, self._on_new_rules, self.on_failure = random, on_rules, settings.on_failure
        self._own_thread = OwnThread()
        self._rules = ClusterRules(rules)
        rule_of = self._rules.rule_of
        counts = DecisionCounts(rule_of)
        policy = _new_policy(settings, self._rules, clock)
        self.router = Router(policy, hedge_after=settings.hedge_after, undecided=counts.add)
        """Router of all checks."""
        self._leases = LeaseRequests(
            transport, lambda: self.router.routes, partial(_count_spent, counts)
        )
        self.local_cache = _new_local_cache(settings, rule_of, self._leases, transport.now, counts)
        """Local cache, which decides without a node; None when denial cache and leases are off."""
        self._slot_waits = SlotWaits()
        self._links = Links(
            *(transport, seeds, hello, settings.link, random, self),
            lambda: self._refresher.view_hash,
            self.local_cache,
        )
        self._refresher = self._new_refresher(settings, transport)
        self._renewer = SlotRenewer(
            lambda batch, timeout: self.router.decide(batch, is_never_denying, within=timeout),
            *(transport.now, transport.report),
        )
        self._report_loop = self._new_report_loop(settings, transport, counts, hello.session)
        self.admin = ClusterAdmin(self._links, lambda: self.members)
        """Admin requests to single nodes."""

    def _new_refresher(self, settings: ClusterSettings, transport: Transport) -> ViewRefresher:
        def on_members() -> None:
            self._slot_waits.wake_all()  # Other nodes may now own the slots.
            self._leases.report_again()

        return ViewRefresher(
            self._links,
            self._rules,
            self.router,
            transport.report,
            datacenter=settings.datacenter,
            ask_owners=settings.ask_owners,
            on_members=on_members,
            on_rules=self._on_rules,
        )

    def _new_report_loop(
        self, settings: ClusterSettings, transport: Transport, counts: DecisionCounts, client: int
    ) -> ReportLoop:
        collect = _collect_nothing if self.local_cache is None else self.local_cache.collect
        return ReportLoop(
            DecisionReports(counts, client, collect, transport.now),
            transport,
            settings.report_interval,
            lambda: [link for link in self._links.ready if link.takes_reports],
            lambda: [row.name for row in self.members if row.state in ROUTED_STATES],
        )

    async def run(
        self, *, task_status: runtime.TaskStatus[None] = runtime.TASK_STATUS_IGNORED
    ) -> None:
        """Update members, rules and links, and renew held concurrency slots, until cancelled."""
        async with runtime.open_task_group() as tasks:
            tasks.start_soon(self._renewer.run)
            self._report_loop.start()
            task_status.started()
            await self._refresher.run()

    async def wait_joined(self, timeout: float) -> RingfenceError | None:  # noqa: ASYNC109
        """Wait until a node has sent members and rules; return an error if none has after
        `timeout` seconds."""
        return await self._refresher.wait_joined(timeout)

    async def aclose(self) -> None:
        """Return the leases, send the last report of decisions made in this process, and close the
        links to all nodes."""
        await self._leases.give_back_all()
        await self._report_loop.flush()
        self.close()

    def close(self) -> None:
        """Close the links to all nodes without a last report of the decisions made in this
        process."""
        self._report_loop.stop()
        self._leases.close()
        self._links.close()
        self.router.routes = None

    # -- state ---------------------------------------------------------------------------------

    @property
    def rules(self) -> RuleSet:
        """Rules of the cluster, or those that the caller gave; empty until a node has sent
        rules."""
        return self._rules.rules

    @property
    def knows_rules(self) -> bool:
        """Whether rules were given by the caller, or a node has sent valid rules."""
        return self._rules.is_known

    @property
    def members(self) -> tuple[MemberRow, ...]:
        """Members of the cluster as last received, sorted by name."""
        return self._refresher.rows

    @property
    def routes(self) -> Routes | None:
        """Hash ring and links by which checks are routed; None until the members are known."""
        return self.router.routes

    @property
    def view(self) -> int:
        """Hash of the member list as last received; 0 until a node has sent one."""
        return self._refresher.view_hash

    # -- Decider -------------------------------------------------------------------------------

    async def decide(
        self,
        batch: Batch,
        denies_group: Callable[[int], bool],
        timeout: float | None,  # noqa: ASYNC109
    ) -> Results:
        """Decide every check of a batch: by the owner of its key, by the standby, or by its
        rule's `on_failure`."""
        self._own_thread.require()
        results = await self.router.decide(batch, denies_group, within=timeout)
        if self.local_cache is not None and batch.op is not Op.CHECK:
            # The owner revokes the denials too, but later if another node forwarded the batch.
            self.local_cache.denials.drop(batch.keys)
        return results

    def ask(self, key: bytes, cost: int, timeout: float | None) -> Awaitable[OutcomeRow]:
        """Decide a single check of a key by the limit of its rule; see `Decider.ask`."""
        self._own_thread.require()
        return self.router.ask(key, cost, timeout)

    def local_checks(self, matches: Matches) -> None:
        """Return None, because a node must be asked."""

    def time(self) -> float:
        """Return the current time of the event loop in seconds."""
        return runtime.current_time()

    def refund(self, batch: Batch, rows: Sequence[int], results: Results, asked_at: float) -> None:
        """Refund the cost of some checks of a batch that were charged; see `Decider.refund`."""
        self.router.refund(batch, rows, results, asked_at)

    @property
    def slot_waits(self) -> SlotWaits:
        """Tasks of this process that wait for slots of concurrency limits."""
        return self._slot_waits

    def new_ticket(self) -> int:
        """Return a random identifier for a task that waits for a slot; two clients must not use
        the same one."""
        return self._random.getrandbits(63) + 1

    def slot_pause(self) -> float:
        """Return the seconds after which a task that waits for a slot asks again.

        The pause is long, because owners and lost links wake the waiting tasks earlier.
        """
        return ASK_AGAIN_NS / 1e9 * (0.75 + self._random.random() / 2)

    def keep(self, slots: Batch, period: float) -> None:
        """Start to renew acquired concurrency slots periodically; see `Decider.keep`."""
        self._renewer.keep(slots, period)

    def stop_renewing(self, slots: Batch) -> Batch:
        """Stop the renewal of concurrency slots; see `Decider.stop_renewing`."""
        return self._renewer.stop_renewing(slots)

    def held(self) -> list[Batch]:
        """Return the requests that would release the concurrency slots which this process still
        renews."""
        return self._renewer.held()

    async def refresh_rules(self) -> None:
        """Fetch the rules again, because a node did not know the rule of a check."""
        await self._refresher.refresh_rules()

    def outage(self) -> RingfenceError | None:
        """Return the first `AccessDenied` error with which a node rejected this client; None
        without one."""
        refusals = self._links.refusals
        return next((error for error in refusals if isinstance(error, AccessDenied)), None)

    def addresses_of(self, keys: Sequence[bytes]) -> list[Address]:
        """Return the addresses of the owners and standbys of keys; the seeds until the members
        are known."""
        routes = self.routes
        if routes is None:
            return list(self._links.seeds)
        address_of = {row.name: (row.host, row.port) for row in self.members}
        names = dict.fromkeys(
            [name for key in keys for name in (routes.owner(key), routes.standby(key))]
        )
        return [address_of[name] for name in names if name in address_of]

    # -- LinkListener --------------------------------------------------------------------------

    def on_versions(self, link: Link, view: int, rules: int) -> None:
        """Refresh members and rules when the answer of a node shows that they are outdated."""
        self._refresher.on_versions(link, view, rules)

    def on_reachable(self, link: Link, reachable: bool) -> None:
        """Log that a node became reachable or was lost, refresh members, and wake waiting tasks."""
        # The name is unknown before `Welcome`.
        node = f"node {link.name}" if link.name else "the node"
        address = f"{link.address[0]}:{link.address[1]}"
        if reachable:
            logger.info("%s at %s is reachable", node, address)
        elif isinstance(link.refusal, PeerLeaving):
            logger.info("%s at %s is leaving", node, address)
        else:
            reason = link.refusal or "it does not answer"
            logger.warning("Ringfence: %s at %s is lost: %s", node, address, reason)
        self._refresher.on_reachable()
        self._slot_waits.wake_all()  # Another node may now have the queue.

    def on_slots_free(self, tickets: list[int]) -> None:
        """Wake the waiting tasks for which a node has reserved slots of a concurrency limit."""
        self._slot_waits.wake(tickets)

    def _on_rules(self, rules: RuleSet) -> None:
        if self.local_cache is not None:
            self.local_cache.denials.clear()  # A new rule may have a higher limit.
        self._on_new_rules(rules)


def _new_policy(settings: ClusterSettings, rules: ClusterRules, clock: Clock) -> FailurePolicy:
    return FailurePolicy(
        rules.rule_of,
        clock,
        settings.max_local_keys,
        lambda rule_id: rules.override_policy(rule_id) or settings.on_failure,
    )


def _new_local_cache(
    settings: ClusterSettings,
    rule_of: Callable[[int], Rule | None],
    leases: LeaseRequests,
    now: Callable[[], float],
    counts: DecisionCounts,
) -> LocalCache | None:
    if not settings.denial_cache_size and not settings.use_leases:
        return None
    used = leases.leases if settings.use_leases else None
    return LocalCache(rule_of, settings.denial_cache_size, used, now, counts)


def _collect_nothing() -> None:
    """Add nothing to the counts of decisions, because this process has no local cache."""


def _count_spent(counts: DecisionCounts, key: bytes, checks: int) -> None:
    counts.add(key, _ALLOWED, _LEASE, checks)
