"""The members and rules as a client knows them, and the links to them.

Any member tells the others and the rules. Each answer carries the member's view hash and rules
version, so a client that is behind learns of it with its next check and fetches what is new.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from hashring import Member, NodeId, RingError, View
from ringfence import runtime
from ringfence.client.local_cache.decision_reports import Reporting
from ringfence.client.local_cache.denial_cache import DenialCache
from ringfence.client.local_cache.leases import LeaseAsk, Leases
from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.client.local_cache.local_decisions import LocalDecisions
from ringfence.client.slots.held_slots import RENEWED_PART, Held, HeldSlots
from ringfence.client.slots.slot_waits import SlotWaits
from ringfence.errors import (
    AccessDenied,
    ConfigError,
    PeerUnavailable,
    RemoteProtocolError,
    RingfenceError,
    UntrustedPeer,
)
from ringfence.limiter import Code
from ringfence.peering.clock import Clock
from ringfence.peering.failure_policy import FailurePolicy
from ringfence.peering.link import CertificateExpired, Link, LinkSettings
from ringfence.peering.link.calls import ask_to_leave, call, counters_of, peers_of, throttled_of
from ringfence.peering.link.outgoing import join_batches
from ringfence.peering.link.round_trips import HedgingBudget
from ringfence.peering.router import Router, Routes
from ringfence.peering.slot_queue import ASK_AGAIN_NS
from ringfence.peering.target import PendingCheck, TimedOut
from ringfence.rules import Rule, RuleSet
from ringfence.transport.interface import Address, Timer, Transport
from ringfence.wire import (
    AskMembers,
    AskRules,
    Batch,
    Hello,
    LeaseGrant,
    LeaseRequest,
    MemberRow,
    Members,
    Message,
    Op,
    OutcomeRow,
    Ping,
    Plain,
    Pong,
    Results,
    Rules,
    Source,
    Throttled,
)

__all__ = ["Cluster", "ClusterSettings"]

logger = logging.getLogger("ringfence.client")

_FINAL = (AccessDenied, UntrustedPeer, CertificateExpired)
"""Refusals that do not pass while somebody waits; the first of these kinds is the one told."""
_REFRESH_PAUSE = 0.2
"""Seconds between two fetches of members or rules, however many answers say that we are behind."""
_SEED_PAUSE = 2.0
"""Seconds until we ask again while something is missing: members, routes, rules."""
_IDLE_PAUSE = 10.0
"""Seconds until we ask what is new although no answer has told us that something is."""
_LOCAL_KEYS = 100_000
_REPORT_WITHIN = 1.0
"""Seconds that closing waits for the last report of decisions, at most."""
_ROUTED = ("alive", "suspect", "leaving")
"""States of members that are in the ring; the others take no part in it, or not yet, or no more."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a client behaves towards its cluster."""

    datacenter: str | None = None
    link: LinkSettings = field(default_factory=LinkSettings)
    local_keys: int = _LOCAL_KEYS
    """Most keys counted in this process while no member can be had."""
    route: bool = True
    """Ask the owner of each key; False asks the first seed that answers, which forwards: for
    one-shot tools."""
    leases: bool = True
    """Borrow units of keys that are asked about often, and spend them without asking."""
    denials: int = 65_536
    """Most denials remembered, so that no member is asked again before they are over; 0 for none.
    """
    patience: float | None = None
    """Most seconds before the standby of an owner that has not answered is asked as well, if the
    hedging budget allows. With short round trips it is less. None: the standby is asked only when
    the owner is lost."""
    report_every: float = 1.0
    """Seconds between two reports of the decisions that this process made without a node."""


_COUNTED = (Source.OWNER, Source.STANDBY)
"""Who has the counters, so that a slot that it does not know has ended."""
_Told = TypeVar("_Told", Members, Rules)


class Cluster:
    """The `Decider` behind `ringfence.connect`: routes each key to the member that owns it."""

    def __init__(
        self,
        transport: Transport,
        seeds: Sequence[Address],
        hello: Hello,
        settings: ClusterSettings,
        clock: Clock,
        random: Random,
        rules: RuleSet | None = None,
    ) -> None:
        self._transport = transport
        self._seeds = tuple(seeds)
        self._hello = hello
        self._settings = settings
        self._random = random
        self._rules = RuleSet() if rules is None else rules
        self._fixed_rules = self._knows_rules = rules is not None
        policy = FailurePolicy(self._rule_of, clock, settings.local_keys)
        tally = LocalDecisions(self._rule_of)
        self._router = Router(policy.decide, patience=settings.patience, undecided=tally.add)
        self._links: dict[Address, Link] = {}
        self._rows: tuple[MemberRow, ...] = ()
        self._view = 0
        self._routed = View.of(())
        """Those of the members that are routed to."""
        self._seen_rules = -1
        """Version of the rules that a member last sent, whether taken or refused."""
        self._told_rules = 0
        """Newest version that an answer spoke of."""
        self._rules_asked_at = float("-inf")
        self._teller: Link | None = None
        """Who last told us that we are behind."""
        self._was_told = False
        """Whether any answer has named versions since they were last asked for."""
        self._datacenter = settings.datacenter
        self._misplaced: ConfigError | None = None
        """Why the members that answered are of no use: none is in the data center asked for."""
        self.near: LocalCache | None = None
        """What is decided without asking a member; None when everything is asked."""
        self.on_rules: Callable[[], None] = _nothing
        """Called after each change of the rules."""
        self._tick: Timer | None = None
        """When leases are to be given back."""
        if settings.denials or settings.leases:
            denials, leases = DenialCache(self._rule_of, settings.denials), Leases(self._borrow)
            borrowed = leases if settings.leases else None
            self.near = LocalCache(denials, borrowed, transport.now, tally)
        self._reporting = Reporting(
            tally,
            hello.session,
            _nothing if self.near is None else self.near.collect,
            transport.now,
        )
        self._report_timer: Timer | None = None
        self._reported = runtime.Event()
        """Set when a report was answered, or cannot be."""
        self._is_counted = False
        """Whether a member has counted the last report."""
        self.slot_waits = SlotWaits()
        """The tasks that wait for a slot."""
        self._held = HeldSlots()
        self._renew_wake = runtime.Event()
        self._wake = runtime.Event()
        self._changed = runtime.Event()

    # -- what the limiter asks -----------------------------------------------------------------

    @property
    def rules(self) -> RuleSet:
        """The rules in force; empty until a member has told them."""
        return self._rules

    @property
    def knows_rules(self) -> bool:
        """Whether rules were given, or a member has told some that could be read."""
        return self._knows_rules

    @property
    def hedging(self) -> HedgingBudget:
        """Number of checks that members were asked for, and how many of them were asked twice."""
        return self._router.hedging

    @property
    def members(self) -> tuple[MemberRow, ...]:
        """The members, sorted by name, as last heard."""
        return self._rows

    @property
    def routes(self) -> Routes | None:
        """Who decides which key; None until the members are known."""
        return self._router.routes

    @property
    def view(self) -> int:
        """Hash of the members as last heard; 0 before."""
        return self._view

    async def decide(
        self, batch: Batch, vetoes: Callable[[int], bool], within: float | None
    ) -> Results:
        """Decide every row: owner, standby, or the rule's `on_failure`."""
        verdicts = await self._router.decide(batch, vetoes, within=within)
        if self.near is not None and batch.op is not Op.CHECK:
            # The owner tells us too, but perhaps later when another member passed this on.
            self.near.denials.drop(batch.keys)
        return verdicts

    def join(self, key: bytes, cost: int, within: float | None) -> PendingCheck | None:
        """See `Decider`."""
        return self._router.join(key, cost, within)

    def decide_one(
        self,
        key: bytes,
        cost: int,
        asked: PendingCheck | None,
        late: TimedOut | None,
        within: float | None,
    ) -> Awaitable[OutcomeRow]:
        """Decide a lone check: owner, standby, or the rule's `on_failure`."""
        return self._router.decide_one(key, cost, asked, late, within)

    def time(self) -> float:
        """The event loop's seconds."""
        return runtime.current_time()

    def refund(self, batch: Batch, rows: Sequence[int], verdicts: Results, asked_at: float) -> None:
        """Give back what rows were just charged, without waiting."""
        self._router.refund(batch, rows, verdicts, asked_at)

    def new_ticket(self) -> int:
        """See `Decider`: random, since the waiters of all clients meet at an owner."""
        return self._random.getrandbits(63) + 1

    def slot_pause_s(self) -> float:
        """See `Decider`: long, for the owner wakes who waits; waiters of a lost one are woken."""
        return ASK_AGAIN_NS / 1e9 * (0.75 + self._random.random() / 2)

    def keep(self, slots: Batch, period_s: float) -> None:
        """Renew slots from now on."""
        self._held.keep(slots, period_s, self._transport.now())
        self._renew_wake.set()

    def let_go(self, slots: Batch) -> Batch:
        """Renew slots no more; returns what gives them back."""
        return self._held.let_go(slots, self._transport.now())

    def held(self) -> list[Batch]:
        """The slots that are renewed."""
        return self._held.origins()

    async def refresh_rules(self) -> None:
        """Fetch the rules from any member that answers, unless that was just done."""
        due = self._rules_asked_at + _REFRESH_PAUSE
        if not self._fixed_rules and runtime.current_time() >= due:
            await self._fetch_rules()

    def outage(self) -> RingfenceError | None:
        """Why no member decides, when one of them has said so."""
        refusals = [link.refusal for link in self._links.values()]
        return next((error for error in refusals if isinstance(error, AccessDenied)), None)

    async def stats(self, row: MemberRow) -> dict[str, int] | None:
        """Fetch one member's counters; None when it cannot be had."""
        return await counters_of(self._link_of(row))

    async def peers(self, row: MemberRow) -> list[dict[str, Plain]] | None:
        """Ask one member what it knows of all members; None when it cannot be had."""
        return await peers_of(self._link_of(row))

    async def throttled(self, row: MemberRow, count: int) -> Throttled | None:
        """Ask one member for the keys that it denied most; None when it cannot be had."""
        return await throttled_of(self._link_of(row), count)

    async def ask_to_leave(self, row: MemberRow) -> bool:
        """Ask one member to hand over, leave and stop; whether it said that it will.

        Raises `AccessDenied` when the token may not.
        """
        return await ask_to_leave(self._link_of(row))

    async def members_seen_by(self, row: MemberRow) -> tuple[MemberRow, ...] | None:
        """Ask one member for the members right now; None when it cannot be had."""
        reply = await call(self._link_of(row), AskMembers, Members)
        return None if reply is None else tuple(reply.members)

    async def all_stats(self) -> list[tuple[MemberRow, dict[str, int] | None]]:
        """Fetch every member's counters at once, None for those that cannot be had."""
        found: dict[str, dict[str, int] | None] = {}

        async def ask(row: MemberRow) -> None:
            found[row.name] = await self.stats(row)

        async with runtime.open_task_group() as tasks:
            for row in self._rows:
                tasks.start_soon(ask, row)
        return [(row, found[row.name]) for row in self._rows if row.name in found]

    # -- the link's listener -------------------------------------------------------------------

    def on_versions(self, link: Link, view: int, rules: int) -> None:
        """Notice that we are behind."""
        self._was_told = True
        if view != self._view or (rules > self._seen_rules and not self._fixed_rules):
            self._told_rules = max(self._told_rules, rules)
            self._teller = link
            self._wake.set()

    def on_reachable(self, link: Link, reachable: bool) -> None:
        """Wake the task that keeps members and links current."""
        # Its name is not known before it has said welcome.
        who = f"member {link.name}" if link.name else "the member"
        where = f"{link.address[0]}:{link.address[1]}"
        if reachable:
            logger.info("%s at %s is within reach", who, where)
        else:
            logger.warning("Ringfence: %s at %s is lost: %s", who, where, link.refusal)
        self._wake.set()
        self._changed.set()
        self.slot_waits.wake_all()  # The line was lost with the member, or there is a new one.

    def on_slots_free(self, tickets: list[int]) -> None:
        """Wake the tasks that slots are kept for."""
        self.slot_waits.wake(tickets)

    # -- joining and keeping current -----------------------------------------------------------

    async def run(
        self, *, task_status: runtime.TaskStatus[None] = runtime.TASK_STATUS_IGNORED
    ) -> None:
        """Keep members, rules and links current until cancelled."""
        async with runtime.open_task_group() as tasks:
            tasks.start_soon(self._renew_slots)
            task_status.started()
            await self._keep_current()

    async def _keep_current(self) -> None:
        self._open_seeds()
        self._report_again()
        while True:
            with runtime.move_on_after(_IDLE_PAUSE if self._is_current else _SEED_PAUSE):
                await self._wake.wait()
            self._wake = runtime.Event()
            try:
                await self._refresh()
            except Exception as error:  # noqa: BLE001 - checks go on by what is known.
                self._transport.report(error)
            await runtime.sleep(_REFRESH_PAUSE)

    async def _renew_slots(self) -> None:
        """Renew the slots that are held, all that are due at once."""
        while True:
            due = self._held.next_due()
            self._renew_wake = runtime.Event()
            wait_s = math.inf if due is None else max(0.0, due - self._transport.now())
            with runtime.move_on_after(wait_s):
                await self._renew_wake.wait()
            held = self._held.due(self._transport.now())
            if held:
                try:
                    await self._renew(held)
                except Exception as error:  # noqa: BLE001 - other slots must be renewed.
                    self._transport.report(error)
                    for each in held:
                        each.unanswered(self._transport.now())

    async def _renew(self, held: Sequence[Held]) -> None:
        for each in held:
            each.unanswered(self._transport.now())
        within = min([each.period_s for each in held]) / RENEWED_PART
        renewals = [each.renewal() for each in held]
        verdicts = await self._router.decide(join_batches(renewals), _never_vetoes, within=within)
        start = 0
        for each in held:
            rows = range(start, start + len(each.release))
            start += len(each.release)
            codes = {verdicts.outcomes.codes[row] for row in rows}
            if not all([verdicts.sources[row] in _COUNTED for row in rows]):
                continue
            if Code.DENIED in codes and not each.is_released:
                await self._take_anew(each, within)
            else:
                each.renewed(self._transport.now())

    async def _take_anew(self, held: Held, within: float) -> None:
        """Take slots again that have ended, as when their owner was lost before it copied them."""
        verdicts = await self._router.decide(held.again(), _never_vetoes, within=within)
        was_lost = held.is_lost
        held.renewed(self._transport.now())
        if all(verdicts.outcomes.leases):
            held.release = replace(held.release, leases=list(verdicts.outcomes.leases))
            if held.is_released:
                await self._router.decide(held.release, _never_vetoes)
            return
        held.is_lost = True
        if not was_lost:
            logger.warning(
                "slot lost: it could not be renewed in time, and no other is free; period %g s",
                held.period_s,
            )

    async def wait_joined(self, within: float) -> RingfenceError | None:
        """Wait until members and rules are known; returns why not after `within` seconds.

        A token that all members refuse, certificates that are not good and a data center that no
        member is in are told at once, for no patience will change them.
        """
        with runtime.move_on_after(within):
            while self._router.routes is None:
                refusals = [link.refusal for link in self._links.values()]
                is_final = refusals and all(isinstance(each, _FINAL) for each in refusals)
                if is_final or self._misplaced is not None:
                    break
                await self._changed.wait()
                self._changed = runtime.Event()
        if self._router.routes is not None:
            return None
        if self._misplaced is not None:
            return self._misplaced
        refusals = [link.refusal for link in self._links.values()]
        for kind in _FINAL:
            told = [each for each in refusals if isinstance(each, kind)]
            if told and (kind is not CertificateExpired or len(told) == len(refusals)):
                return told[0]
        reasons = [str(refusal) for refusal in refusals if refusal is not None]
        named = ", ".join(f"{host}:{port}" for host, port in self._seeds)
        return PeerUnavailable(
            f"no member of the cluster answered within {within:g} s (asked {named})"
            + (f": {'; '.join(reasons)}" if reasons else "")
        )

    async def report(self) -> None:
        """Report the decisions that were made here and not reported yet; bounded in time.

        A client that ends calls this before `close`.
        """
        with runtime.move_on_after(_REPORT_WITHIN, shield=True):
            is_counted = True
            while is_counted and self._reporting.has_any:
                self._reported = runtime.Event()
                self._send_report()
                if self._reporting.is_under_way:
                    await self._reported.wait()
                is_counted = self._is_counted

    def _send_report(self) -> None:
        self._is_counted = False
        links = [link for link in self._links.values() if link.is_ready and link.takes_reports]
        known = [row.name for row in self._rows if row.state in _ROUTED]
        self._reporting.send(links, known, self._on_reported)

    def _on_reported(self, is_counted: bool) -> None:
        self._is_counted = is_counted
        self._reported.set()

    def _report_again(self) -> None:
        due = self._transport.now() + self._settings.report_every
        self._report_timer = self._transport.call_at(due, self._report_again)
        self._send_report()

    def close(self) -> None:
        """Close every link."""
        for timer in (self._tick, self._report_timer):
            if timer is not None:
                timer.cancel()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._router.routes = None

    @property
    def _is_connected(self) -> bool:
        return any(link.is_ready for link in self._links.values())

    @property
    def _is_current(self) -> bool:
        """Whether nothing is missing, as far as we have been told."""
        return self._is_connected and self._router.routes is not None and not self._lacks_rules

    @property
    def _lacks_rules(self) -> bool:
        return not self._fixed_rules and self._seen_rules < self._told_rules

    def _open_seeds(self) -> None:
        for seed in self._seeds:
            self._link_to(seed).open()

    def _link_to(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            link = Link(
                self._transport,
                address,
                # Requests are known by session and number, and each link counts for itself.
                replace(self._hello, session=self._random.getrandbits(64)),
                self._settings.link,
                self,
                self._random,
                lambda: self._view,
                self.near,
            )
            self._links[address] = link
        return link

    async def _refresh(self) -> None:
        if not self._is_connected:
            self._open_seeds()  # All members known may be gone; the seeds may know others.
            return
        # Who asks nothing is told nothing: a client without any rule yet would never hear of one.
        was_told, self._was_told = self._was_told, False
        if not self._fixed_rules and (self._seen_rules < 0 or self._lacks_rules or not was_told):
            await self._fetch_rules()
        members = await self._ask_any(AskMembers, Members)
        has_rules = self._fixed_rules or self._seen_rules >= 0
        is_new = members is not None and (
            members.view != self._view or _places(members.members) != _places(self._rows)
        )
        if members is not None and has_rules and (is_new or self._router.routes is None):
            if self._router.routes is not None and self._settings.route:
                await self._greet(members)
            self._adopt(members)
        self._changed.set()

    async def _fetch_rules(self) -> None:
        self._rules_asked_at = runtime.current_time()
        reply = await self._ask_any(AskRules, Rules)
        if reply is None:
            return
        if reply.version <= self._seen_rules:
            # A member that has not reloaded yet; the one that is ahead will tell us again.
            self._told_rules = self._seen_rules
            return
        self._seen_rules = reply.version
        try:
            self._rules = RuleSet.from_plain(reply.plain)
        except RemoteProtocolError as error:
            logger.warning("rules of version %d refused: %s", reply.version, error)
            return
        self._knows_rules = True
        if self.near is not None:
            self.near.denials.clear()  # A limit may have been raised.
        logger.info("rules of version %d, %d in all", reply.version, len(self._rules.rules()))
        self.on_rules()

    async def _greet(self, members: Members) -> None:
        """Connect to members that are new, so that no check waits for it.

        Until it is done, or has failed, the members known before forward what is theirs.
        """
        async with runtime.open_task_group() as group:
            for row in members.members:
                if row.state in _ROUTED and row.datacenter == self._datacenter:
                    link = self._link_of(row)
                    if not link.is_ready:
                        group.start_soon(call, link, Ping, Pong)

    def _adopt(self, members: Members) -> None:
        """Route by these members from now on; links to those that are gone are closed."""
        alive = [row for row in members.members if row.state in _ROUTED]
        answering = {link.name for link in self._links.values() if link.is_ready}
        near = [row.datacenter for row in alive if row.name in answering]
        datacenter = self._datacenter or (near[0] if near else None)
        here = [row for row in alive if row.datacenter == datacenter]
        if not here:
            logger.warning("no member in data center %r; the members known before stay", datacenter)
            self._misplaced = self._nowhere(members)
            return
        self._datacenter = datacenter
        try:
            view = View.of(
                (Member(NodeId(row.name), row.datacenter, row.zone, row.weight) for row in alive),
                like=self._routed,
            )
        except RingError as error:
            logger.warning("members refused, those known before stay: %s", error)
            return
        ring = view.ring(here[0].datacenter)
        targets: dict[NodeId, Link] = {}
        for row in here:
            targets[NodeId(row.name)] = self._link_of(row)
        if not self._settings.route:
            ready = [link for link in self._links.values() if link.is_ready]
            first = ready[0] if ready else self._link_to(self._seeds[0])
            targets = dict.fromkeys(targets, first)
        keep = {id(link) for link in targets.values()}
        for address, link in list(self._links.items()):
            if id(link) not in keep:
                del self._links[address]
                link.retire()
        self._misplaced = None
        self._rows = tuple(members.members)
        self._view, self._routed = members.view, view
        self._router.routes = Routes(ring, targets)
        self.slot_waits.wake_all()  # Other members may decide by now.

    def _nowhere(self, members: Members) -> ConfigError | None:
        """Tell that the data center given is none of theirs; one that is down may come back."""
        asked = self._settings.datacenter
        known = sorted({row.datacenter for row in members.members})
        if asked is None or asked in known:
            return None
        return ConfigError(
            f"no member of the cluster is in data center {asked!r}, which the address asks for; "
            f"known are {', '.join(map(repr, known))}"
        )

    def _link_of(self, row: MemberRow) -> Link:
        """The link to a member: the one that it already answers on, else a new one."""
        for link in self._links.values():
            if link.name == row.name and link.is_ready:
                return link
        return self._link_to((row.host, row.port))

    async def _ask_any(self, make: Callable[[int], Message], kind: type[_Told]) -> _Told | None:
        """Ask the members in turn until one replies."""
        for link in sorted(self._links.values(), key=lambda link: link is not self._teller):
            if link.is_ready:
                reply = await call(link, make, kind)
                if reply is not None:
                    return reply
        return None

    # -- borrowing -----------------------------------------------------------------------------

    def _borrow(self, ask: LeaseAsk) -> None:
        """Tell the owner of a key what is wanted, or whoever lent it what was spent."""
        assert self.near is not None
        routes, asked_at, leases = self._router.routes, self._transport.now(), self.near.leases
        link: object = ask.teller
        if link is None and routes is not None:
            owner = routes.owner(ask.key)
            link = None if owner is None else routes.targets.get(owner)
        if not isinstance(link, Link) or not link.is_subscribed:
            leases.lent(ask, None, asked_at, None)
            return

        def on_reply(reply: object) -> None:
            answer = reply if isinstance(reply, LeaseGrant) and link.is_subscribed else None
            leases.lent(ask, link, asked_at, answer)
            self._plan_tick()

        def make(seq: int) -> Message:
            return LeaseRequest(seq, ask.key, ask.want, list(ask.leases), list(ask.spent))

        link.call(make, on_reply)

    def _plan_tick(self) -> None:
        assert self.near is not None
        due = self.near.leases.next_deadline()
        if self._tick is None and due < float("inf"):
            self._tick = self._transport.call_at(due, self._give_back)

    def _give_back(self) -> None:
        assert self.near is not None
        self._tick = None
        self.near.leases.tick(self._transport.now())
        self._plan_tick()

    def _rule_of(self, rule_id: int) -> Rule | None:
        return self._rules.by_id(rule_id)


def _never_vetoes(index: int) -> bool:
    return False


def _places(rows: Sequence[MemberRow]) -> list[tuple[str, str, int, str]]:
    """What must be the same for the links to stay right."""
    return [(row.name, row.host, row.port, row.state) for row in rows]


def _nothing() -> None:
    """Do nothing: where nobody waits for rules, or this process decides nothing by itself."""
