"""Refresh of a stale view: fetches members and rules when an answer shows that they are outdated.

Each answer contains the view hash and the rules version of its node. When they differ from the
client's, the client fetches the members and rules, and routes the next checks by them. When a check
was sent to the wrong node because of a stale view, that node forwarded it, so it is not repeated.
"""

import logging
from collections.abc import Callable, Sequence

from hashring import Member, NodeId, RingError, View
from ringfence import runtime
from ringfence.client.cluster.links import Links
from ringfence.client.cluster.rules_version import ClusterRules
from ringfence.errors import (
    AccessDenied,
    ConfigError,
    PeerUnavailable,
    RingfenceError,
    UntrustedPeer,
)
from ringfence.peering.link import CertificateExpired, Link
from ringfence.peering.link.calls import call
from ringfence.peering.routing import Router, Routes
from ringfence.rules import RuleSet
from ringfence.wire import AskMembers, AskRules, MemberRow, Members, Ping, Pong, Rules

__all__ = ["ROUTED_STATES", "ViewRefresher"]

logger = logging.getLogger("ringfence.client")

ROUTED_STATES = ("alive", "suspect", "leaving")
"""States of members that are in the ring."""
_FINAL = (AccessDenied, UntrustedPeer, CertificateExpired)
"""Errors that waiting cannot resolve. The first kind found is reported."""
_REFRESH_PAUSE = 0.2
"""Seconds between two refreshes, however many answers show a stale view."""
_INCOMPLETE_PAUSE = 2.0
"""Seconds until the next refresh while members, routes or rules are missing."""
_IDLE_PAUSE = 10.0
"""Seconds until the next refresh if no answer shows a stale view."""


class ViewRefresher:
    """Task that updates the members, rules and routes of a client when they are outdated."""

    def __init__(
        self,
        links: Links,
        rules: ClusterRules,
        router: Router,
        report_error: Callable[[Exception], None],
        *,
        datacenter: str | None,
        ask_owners: bool,
        on_members: Callable[[], None],
        on_rules: Callable[[RuleSet], None],
    ) -> None:
        """`on_members` and `on_rules` are called after each change of members or rules."""
        self.rows: tuple[MemberRow, ...] = ()
        """The members, sorted by name, as last received."""
        self.view_hash = 0
        """Hash of the members; 0 before the first were received."""
        self._links = links
        self._rules = rules
        self._router = router
        self._report_error = report_error
        self._asked_datacenter = self._datacenter = datacenter
        self._ask_owners = ask_owners
        self._on_members = on_members
        self._on_rules = on_rules
        self._routed_view = View.of(())
        self._newer_link: Link | None = None
        """Link whose node last showed that this client is behind."""
        self._has_versions = False
        """Whether an answer has named versions since the last refresh."""
        self._rules_fetched_at = float("-inf")
        self._misplaced: ConfigError | None = None
        """Error when no member is in the data center of the address."""
        self._is_without_members = False
        """Whether the last list had no member that can be asked."""
        self._refresh_wanted = runtime.Event()
        self._changed = runtime.Event()

    def on_versions(self, link: Link, view: int, rules: int) -> None:
        """Schedule a refresh when the view hash or rules version in an answer shows that the
        client's are outdated."""
        self._has_versions = True
        has_newer_rules = rules > self._rules.received_version and not self._rules.is_fixed
        if view != self.view_hash or has_newer_rules:
            self._rules.announce(rules)
            self._newer_link = link
            self._refresh_wanted.set()

    def on_reachable(self) -> None:
        """Schedule a refresh of members and rules, because a node became reachable or was lost."""
        self._refresh_wanted.set()
        self._changed.set()

    async def run(self) -> None:
        """Refresh members and rules when needed, until cancelled."""
        self._links.open_seeds()
        while True:
            with runtime.move_on_after(_IDLE_PAUSE if self._is_current else _INCOMPLETE_PAUSE):
                await self._refresh_wanted.wait()
            self._refresh_wanted = runtime.Event()
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001 - checks continue by what is known
                self._report_error(error)
            await runtime.sleep(_REFRESH_PAUSE)  # Bounds the refreshes during a change.

    async def refresh(self) -> None:
        """Fetch the members, and the rules if they may have changed."""
        if not self._links.ready:
            # All known members may be gone or moved; the seeds and other data centers know others.
            self._links.open_seeds()
            self._links.open_some([row for row in self.rows if row.datacenter != self._datacenter])
            return
        # Without checks no answer names versions, so the rules are fetched in any case.
        had_versions, self._has_versions = self._has_versions, False
        rules = self._rules
        if not rules.is_fixed and (rules.is_missing or rules.is_behind or not had_versions):
            await self._fetch_rules()
        members = await self._links.ask_any(AskMembers, Members, self._newer_link)
        is_new = members is not None and (
            members.view != self.view_hash or _places(members.members) != _places(self.rows)
        )
        if members is not None and not rules.is_missing and (is_new or not self._has_routes):
            if self._has_routes and self._ask_owners:
                await self._connect_new(members)
            self._adopt(members)
        self._changed.set()

    async def refresh_rules(self) -> None:
        """Fetch the rules, unless they were fetched a moment ago."""
        due = self._rules_fetched_at + _REFRESH_PAUSE
        if not self._rules.is_fixed and runtime.current_time() >= due:
            await self._fetch_rules()

    async def wait_joined(self, timeout: float) -> RingfenceError | None:  # noqa: ASYNC109
        """Wait until a node has sent members and rules; return an error if none has after `timeout`
        seconds.

        A token that all nodes reject, invalid certificates and an unknown data center are returned
        immediately, because waiting cannot resolve them.
        """
        with runtime.move_on_after(timeout):
            while not self._has_routes:
                if self._links.are_refused(_FINAL) or self._misplaced is not None:
                    break
                await self._changed.wait()
                self._changed = runtime.Event()
        return None if self._has_routes else self._join_error(timeout)

    @property
    def _has_routes(self) -> bool:
        return self._router.routes is not None

    @property
    def _is_current(self) -> bool:
        return bool(self._links.ready) and self._has_routes and not self._rules.is_behind

    def _join_error(self, timeout: float) -> RingfenceError:
        if self._misplaced is not None:
            return self._misplaced
        refusals = self._links.refusals
        for kind in _FINAL:
            found = [each for each in refusals if isinstance(each, kind)]
            if found and (kind is not CertificateExpired or len(found) == len(refusals)):
                return found[0]
        reasons = [str(refusal) for refusal in refusals if refusal is not None]
        seeds = ", ".join(f"{host}:{port}" for host, port in self._links.seeds)
        return PeerUnavailable(
            f"no node of the cluster answered within {timeout:g} s (asked {seeds})"
            + (f": {'; '.join(reasons)}" if reasons else ""),
            addresses=self._links.seeds,
        )

    async def _fetch_rules(self) -> None:
        self._rules_fetched_at = runtime.current_time()
        reply = await self._links.ask_any(AskRules, Rules, self._newer_link)
        if reply is not None and self._rules.adopt(reply):
            self._on_rules(self._rules.rules)

    async def _connect_new(self, members: Members) -> None:
        """Connect to new members before checks are sent to them, so that no check waits for a
        connection.

        Until then the known members forward the checks.
        """
        async with runtime.open_task_group() as group:
            for row in members.members:
                if row.state in ROUTED_STATES and row.datacenter == self._datacenter:
                    link = self._links.link_of(row)
                    if not link.is_ready:
                        group.start_soon(call, link, Ping, Pong)

    def _adopt(self, members: Members) -> None:
        """Route checks by the new list of members from now on, and close the links to other
        nodes."""
        routed = [row for row in members.members if row.state in ROUTED_STATES]
        answering = {link.name for link in self._links.ready}
        nearby = [row.datacenter for row in routed if row.name in answering]
        datacenter = self._datacenter or (nearby[0] if nearby else None)
        local = [row for row in routed if row.datacenter == datacenter]
        if not local:
            if not self._is_without_members:  # Clients ask several times a second.
                if routed:
                    logger.warning("members kept: no member is in data center %r", datacenter)
                else:
                    logger.warning("members kept: no member is alive yet")
            self._is_without_members = True
            self._misplaced = self._unknown_datacenter(members)
            return
        self._datacenter, self._is_without_members = datacenter, False
        try:
            view = View.of(
                (Member(NodeId(row.name), row.datacenter, row.zone, row.weight) for row in routed),
                like=self._routed_view,
            )
        except RingError as error:
            logger.warning("members rejected: error=%s", error)
            return
        targets = {NodeId(row.name): self._links.link_of(row) for row in local}
        if not self._ask_owners:
            ready = self._links.ready
            first = ready[0] if ready else self._links.link_to(self._links.seeds[0])
            targets = dict.fromkeys(targets, first)
        self._links.retire_others(targets.values())
        self._misplaced = None
        self.rows = tuple(members.members)
        self.view_hash, self._routed_view = members.view, view
        self._router.routes = Routes(view.ring(local[0].datacenter), targets)
        self._on_members()

    def _unknown_datacenter(self, members: Members) -> ConfigError | None:
        """Return an error if the client's data center has no members; None otherwise.

        Members that are down count, because they may come back.
        """
        asked = self._asked_datacenter
        known = sorted({row.datacenter for row in members.members})
        if asked is None or asked in known:
            return None
        return ConfigError(
            f"no member of the cluster is in data center {asked!r}, which the address asks for; "
            f"known are {', '.join(map(repr, known))}"
        )


def _places(rows: Sequence[MemberRow]) -> list[tuple[str, str, int, str]]:
    """Return the name, address and state of each member; links depend only on these fields."""
    return [(row.name, row.host, row.port, row.state) for row in rows]
