"""Which member decides a key, and who is asked when that member cannot be had.

The same code routes for an embedded client and for a node that forwards: owner first, then the
standby in its place, then the rule's `on_failure`. Groups are all or nothing, also when their keys
live with different owners: what was charged is given back at once when another member denied.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from hashring import SHARDS, NodeId, Ring, pick, shard_of
from ringfence import runtime
from ringfence.errors import AccessDenied
from ringfence.limiter import Code, Outcome
from ringfence.peering.link.round_trips import HedgingBudget
from ringfence.peering.one_shot_event import OneShotEvent
from ringfence.peering.target import (
    PendingCheck,
    SentBatch,
    Shed,
    Target,
    TimedOut,
    age_ns_of,
)
from ringfence.wire import (
    MAX_KEYS,
    NO_ID,
    Batch,
    CheckId,
    Op,
    OutcomeRow,
    Results,
    Source,
    empty_results,
    join_results,
)

__all__ = ["Fallback", "Router", "Routes"]

_LAST_CHARGED = Code.OVER_SOFT
"""Codes up to this one say that the check was charged."""
_COUNTED = (Source.OWNER, Source.STANDBY)
_DENIALS = (Code.DENIED, Code.NEVER)
_LEAST_PATIENCE = 0.01
"""Seconds above the mean round trip for which no standby is asked."""


@dataclass(frozen=True, slots=True)
class Routes:
    """A ring and how to reach its members."""

    ring: Ring
    targets: Mapping[NodeId, Target]
    elsewhere: Mapping[bytes, Ring] = field(default_factory=dict)
    """Rings that decide the keys of some rules, by the rule's id: the first 8 bytes of a key."""

    def owner(self, key: bytes) -> NodeId | None:
        """Name the member that decides a key; None when there is none."""
        owners = self._ring_of(key).owner_by_shard
        return owners[shard_of(key)] if owners else None

    def owners(self, keys: Sequence[bytes]) -> list[NodeId | None]:
        """Name the member that decides each key, as `owner` does."""
        owners = self.ring.owner_by_shard
        if self.elsewhere or not owners:
            return [self.owner(key) for key in keys]
        return pick(keys, owners)

    def target_by_shard(self) -> list[Target | None]:
        """Who decides the keys of each shard; None where nobody does, or not by the shard alone."""
        owners = self.ring.owner_by_shard
        if self.elsewhere or not owners:
            return [None] * SHARDS
        return [self.targets.get(owner) for owner in owners]

    def standby(self, key: bytes) -> NodeId | None:
        """Name the member that decides a key when its owner cannot be had."""
        ring = self._ring_of(key)
        return ring.standby(shard_of(key)) if ring.owner_by_shard else None

    def _ring_of(self, key: bytes) -> Ring:
        return self.elsewhere.get(key[:8], self.ring) if self.elsewhere else self.ring


Fallback = Callable[[Batch, int], tuple[Outcome, Source]]
"""Decides the row of a batch that no member could."""


class Router:
    """Sends each key of a batch to the member that decides it, and gathers the verdicts."""

    def __init__(
        self,
        fallback: Fallback,
        *,
        retries: bool = False,
        patience: float | None = None,
        undecided: Callable[[bytes, int, int], None] | None = None,
    ) -> None:
        """`retries` asks an owner once more when the members changed meanwhile: for nodes, which
        learn of it before their callers do.

        An owner that takes much longer over a check than its round trips so far, or longer than
        `patience` (seconds), is not given up, but its standby is asked as well, as far as the
        budget of such second asks allows. Both requests carry one identity, so nodes count the
        check once. The standby of an owner that is known to be lost needs no budget.

        `undecided` receives key, code and source of each check that the fallback decided.
        """
        self.hedging = HedgingBudget()
        """Hedging budget, which counts the checks and the second asks."""
        self._fallback = fallback
        self._undecided = undecided
        self._patience = patience
        self._attempts = (False, False, True) if retries else (False, True)
        self.routes: Routes | None = None
        """None until the members are known: then everything falls back."""
        self._joined_by: Routes | None = None
        """The routes that `_targets` were last worked out of."""
        self._targets: list[Target | None] = []

    async def decide(
        self,
        batch: Batch,
        vetoes: Callable[[int], bool],
        *,
        hops: int = 0,
        within: float | None = None,
    ) -> Results:
        """Have every row decided, by the owner, its standby or the fallback; never raises.

        When a member says that we may not ask, no standby is asked and `Results.refusal` tells it.

        `vetoes` tells of a row whether its denial denies the rest of its group. `within` (seconds)
        cuts the search for a member short: what is undecided by then falls back. A cancelled call
        charges nothing: what it was charged, or will be by then, is given back.
        """
        gathering = _PendingRequest(batch, runtime.current_time(), [])
        await self._decide(gathering, self._attempts, hops, None, within)
        self._complete(gathering, vetoes)
        return gathering.verdicts

    def join(self, key: bytes, cost: int, within: float | None) -> PendingCheck | None:
        """Let a lone check leave with others for the member that decides it: the path of most.

        None when none can be asked like this; then, and when the wait brings no row, `decide_one`
        must decide. It brings none after `within` seconds, or when our patience is over.
        """
        routes = self.routes
        if routes is None:
            return None
        if routes is not self._joined_by:
            self._targets = routes.target_by_shard()
            self._joined_by = routes
        target = self._targets[shard_of(key)]
        if target is None:
            return None
        self.hedging.checks += 1
        if self._patience is not None:
            patience = target.answer_timeout(_LEAST_PATIENCE, self._patience)
            if within is None or patience < within:
                within = patience
        return target.join(key, cost, within)

    async def decide_one(
        self,
        key: bytes,
        cost: int,
        asked: PendingCheck | None,
        late: TimedOut | None,
        within: float | None,
    ) -> OutcomeRow:
        """Have a lone check decided that could not `join`, or whose owner did not answer, or not
        yet; `within` seconds after it was `asked`, when that is given.

        Raises `AccessDenied` when a member says that we may not ask.
        """
        now = runtime.current_time()
        asked_at = now if asked is None else asked.asked_at
        gathering = _PendingRequest(Batch(Op.CHECK, [key], [cost]), asked_at, [])
        attempts: Sequence[bool] = self._attempts if asked is None else self._attempts[1:]
        if late is not None:
            owner = self._targets[shard_of(key)] if self._targets else None
            waiter = gathering.new_waiter(gathering.batch, gathering.missing, owner)
            waiter.asked, waiter.first_row = late.asked, late.row
            if late.is_given_up:
                waiter.resolve(None)
            late.when_answered(waiter.resolve)
            gathering.take()
        if not gathering.shed and (within is None or asked_at + within > now):
            left = None if within is None else asked_at + within - now
            joined_by = None if asked is None else self._joined_by
            await self._decide(gathering, attempts, 0, joined_by, left)
        self._complete(gathering, _always_vetoes)
        if gathering.verdicts.refusal is not None:
            raise gathering.verdicts.refusal
        return gathering.verdicts.row(0)

    async def _decide(
        self,
        gathering: "_PendingRequest",
        attempts: Sequence[bool],
        hops: int,
        asked: Routes | None,
        within: float | None,
    ) -> None:
        try:
            if within is None:
                await self._gather(gathering, attempts, hops, asked)
            else:
                with runtime.move_on_after(within):
                    await self._gather(gathering, attempts, hops, asked)
        except BaseException:
            self._abandon(gathering)
            raise

    def refund(self, batch: Batch, rows: Sequence[int], verdicts: Results, asked_at: float) -> None:
        """Give back what `rows` were just charged, where they were charged; nobody waits for it.

        `asked_at` is the instant of the check by `runtime.current_time`: the owner gives nothing
        back to a window that began after it.
        """
        age_ns = age_ns_of(asked_at, runtime.current_time())
        for source in (Source.OWNER, Source.STANDBY, Source.LOCAL):
            charged = [i for i in rows if batch.costs[i] and verdicts.sources[i] == source]
            if not charged:
                continue
            taken = batch.take(charged)
            refund = Batch(
                Op.REFUND,
                taken.keys,
                taken.costs,
                limits=taken.limits,
                which=taken.which,
                ages_ns=[age_ns] * len(charged),
                leases=[verdicts.outcomes.leases[i] for i in charged],
            )
            if source is Source.LOCAL:
                for index in range(len(refund)):
                    self._fallback(refund, index)
            elif self.routes is not None:
                as_standby = source is Source.STANDBY
                every = range(len(refund))
                for indexes, target in _split(self.routes, refund, every, as_standby=as_standby):
                    part = refund.take(indexes)
                    target.ask(part, hops=0, as_standby=as_standby, done=_nothing)

    async def _gather(
        self,
        gathering: "_PendingRequest",
        attempts: Sequence[bool],
        hops: int,
        asked: Routes | None,
    ) -> None:
        """Ask the owners, then for what they left the standbys, or whoever owns it since.

        `asked` are the routes by which the owner was asked already.
        """
        batch = gathering.batch
        if gathering.waiters and await self._be_patient(gathering):
            return
        for as_standby in attempts:
            routes = self.routes
            if routes is None or (routes is asked and not as_standby):
                continue
            moved: Sequence[int] = ()
            if as_standby and asked is not None and routes is not asked:
                # The members changed while we waited: whoever owns it now has not been asked.
                moved = _moved(asked, routes, batch, gathering.missing)
            asked = routes
            rest = sorted({*gathering.missing} - {*moved}) if moved else gathering.missing
            if gathering.shed:
                rest = [index for index in rest if index not in gathering.shed]
            if not as_standby:
                self.hedging.checks += len(rest)
            parts = [
                (indexes, target, as_standby)
                for rows, as_standby in ((moved, False), (rest, as_standby))
                for indexes, target in _split(routes, batch, rows, as_standby=as_standby)
            ]
            waiters = gathering.ask(parts, hops)
            if self._patience is None or as_standby or batch.op is not Op.CHECK:
                await gathering.wait(waiters)
            else:
                with runtime.move_on_after(self._patience_with(waiters, self._patience)):
                    await gathering.wait(waiters)
                if not self._may_hedge(waiters):
                    await gathering.wait(waiters)
            gathering.take()
            if not gathering.missing or gathering.verdicts.refusal is not None:
                return
        if self._patience is not None:
            await gathering.wait(gathering.waiters)  # A slow owner is better than no member.
            gathering.take()
        # Perhaps nothing had to be waited for: other tasks, those that reconnect among them, must
        # get their turn also when somebody checks in a loop.
        await runtime.checkpoint()

    async def _be_patient(self, gathering: "_PendingRequest") -> bool:
        """Wait as long for an owner that was asked already as for any; whether it answered."""
        waiters = gathering.waiters
        give_up = math.inf
        if self._patience is not None:
            give_up = gathering.asked_at + self._patience_with(waiters, self._patience)
        with runtime.move_on_after(give_up - runtime.current_time()):
            await gathering.wait(waiters)
        if not self._may_hedge(waiters):
            await gathering.wait(waiters)
        gathering.take()
        return not gathering.missing or gathering.verdicts.refusal is not None

    def _patience_with(self, waiters: Sequence["_Waiter"], most: float) -> float:
        """Return the seconds to wait before a standby is asked as well."""
        asked = [waiter.target for waiter in waiters if waiter.target is not None]
        patience = [target.answer_timeout(_LEAST_PATIENCE, most) for target in asked]
        return max(patience, default=most)

    def _may_hedge(self, waiters: Sequence["_Waiter"]) -> bool:
        """Return whether standbys may be asked for the missing rows; spends the budget."""
        open_rows = sum([len(waiter.indexes) for waiter in waiters if not waiter.is_done])
        has_standbys = self.routes is not None and len(self.routes.ring.members) > 1
        return not open_rows or not has_standbys or self.hedging.take(open_rows)

    def _complete(self, gathering: "_PendingRequest", vetoes: Callable[[int], bool]) -> None:
        """Decide what nobody has decided, and undo groups that were denied in another place."""
        batch, verdicts = gathering.batch, gathering.verdicts
        gathering.take()
        if gathering.missing:
            gathering.note_busy()
        for index in gathering.missing:
            outcome, source = self._fallback(batch, index)
            is_shed = source is Source.POLICY and index in gathering.shed
            source = Source.SHED if is_shed else source
            verdicts.put(index, outcome, source)
            if self._undecided is not None and batch.op is Op.CHECK and verdicts.refusal is None:
                self._undecided(batch.keys[index], outcome.code.value, source.value)
        if batch.op is not Op.CHECK:
            return
        if batch.groups and (gathering.is_split or gathering.missing):
            self._settle(gathering, vetoes)
        self._take_back_when_late(gathering)

    def _settle(self, gathering: "_PendingRequest", vetoes: Callable[[int], bool]) -> None:
        """Give back what a group was charged in one place when it was denied in another."""
        batch, columns = gathering.batch, gathering.verdicts.outcomes
        codes = columns.codes
        undone: list[int] = []
        start = 0
        for run in batch.groups:
            rows = range(start, start + run)
            start += run
            if any(
                codes[i] == Code.UNKNOWN_RULE or (codes[i] in _DENIALS and vetoes(i)) for i in rows
            ):
                undone += [i for i in rows if codes[i] <= _LAST_CHARGED]
        self.refund(batch, undone, gathering.verdicts, gathering.asked_at)
        gathering.note_refunded(undone)
        for index in undone:
            codes[index] = Code.UNCHARGED
            columns.remaining[index] += batch.costs[index]
            columns.delay_ns[index] = columns.leases[index] = 0

    def _abandon(self, gathering: "_PendingRequest") -> None:
        """Nobody will learn the verdicts: give back what was charged, now or when it turns out."""
        batch = gathering.batch
        if batch.op is not Op.CHECK:
            return
        gathering.take()
        verdicts = gathering.verdicts
        charged = [i for i in range(len(batch)) if verdicts.outcomes.codes[i] <= _LAST_CHARGED]
        self.refund(batch, charged, verdicts, gathering.asked_at)
        gathering.note_refunded(charged)
        gathering.verdicts = empty_results(len(batch))
        self._take_back_when_late(gathering)

    def _take_back_when_late(self, gathering: "_PendingRequest") -> None:
        for waiter in gathering.waiters:
            if waiter.verdicts is None and waiter.refusal is None:
                waiter.on_late = partial(self._take_back, gathering, waiter)

    def _take_back(self, gathering: "_PendingRequest", waiter: "_Waiter", late: Results) -> None:
        """Refund late charges of checks that did not pass, and slots that no caller holds.

        Each row at most once: all answers to a check speak of one charge. A check that the policy
        let pass stays counted, late as it is.
        """
        codes, slots = late.outcomes.codes, late.outcomes.leases
        final = gathering.verdicts.outcomes
        rows = [
            row
            for row, index in enumerate(waiter.indexes)
            if codes[row] <= _LAST_CHARGED
            and index not in gathering.refunded
            and (final.codes[index] > _LAST_CHARGED or slots[row] != final.leases[index])
        ]
        gathering.refunded.update([waiter.indexes[row] for row in rows])
        self.refund(waiter.part, rows, late, gathering.asked_at)


class _Waiter:
    """One outstanding ask."""

    __slots__ = (
        "_on_done",
        "asked",
        "first_row",
        "indexes",
        "is_done",
        "is_shed",
        "is_taken",
        "on_late",
        "part",
        "refusal",
        "target",
        "verdicts",
    )

    def __init__(
        self,
        part: Batch,
        indexes: Sequence[int],
        target: Target | None,
        on_done: Callable[[], None],
    ) -> None:
        self.part = part
        self.target = target
        self.indexes = indexes
        """Where the rows of `part` stand in the whole batch."""
        self.verdicts: Results | None = None
        self.refusal: AccessDenied | None = None
        self.is_done = False
        self.is_taken = False
        self.is_shed = False
        """Whether the member is too busy."""
        self.on_late: Callable[[Results], None] | None = None
        """Called with verdicts that come when the caller has its decision."""
        self.asked: SentBatch | None = None
        self.first_row = 0
        """Where the rows of `part` begin in what was `asked`."""
        self._on_done = on_done

    def resolve(self, answer: Results | AccessDenied | Shed | None) -> None:
        """Set the answer; None when none came in time, after which a late one may come."""
        self.is_done = True
        if isinstance(answer, AccessDenied):
            self.refusal = answer
        elif isinstance(answer, Shed):
            self.is_shed = True
        elif answer is not None:
            self.verdicts = answer
        self._on_done()
        if self.on_late is not None and self.verdicts is not None:
            self.on_late(self.verdicts)


class _PendingRequest:
    """The verdicts on one batch as they come in."""

    def __init__(self, batch: Batch, asked_at: float, waiters: list[_Waiter]) -> None:
        self.batch = batch
        self.asked_at = asked_at
        self.waiters = waiters
        """One for each question to a member."""
        self.missing: Sequence[int] = range(len(batch))
        self.is_split = False
        """Whether several members decide, so that no one of them saw all of a group."""
        self.refunded: set[int] = set()
        """Rows whose charge was given back."""
        self._signal = OneShotEvent()
        self.shed: set[int] = set()
        """Rows whose member is overloaded: no other member is asked."""
        self._verdicts: Results | None = None

    @property
    def verdicts(self) -> Results:
        """What is known by now. Room for it is made when it is first asked for: seldom."""
        if self._verdicts is None:
            self._verdicts = empty_results(len(self.batch))
        return self._verdicts

    @verdicts.setter
    def verdicts(self, verdicts: Results) -> None:
        self._verdicts = verdicts

    def new_waiter(self, part: Batch, indexes: Sequence[int], target: Target | None) -> _Waiter:
        """Add a question to a member about the rows at `indexes`."""
        waiter = _Waiter(part, indexes, target, self._wake)
        self.waiters.append(waiter)
        return waiter

    def ask(
        self, parts: Sequence[tuple[Sequence[int], Target, bool]], hops: int
    ) -> "list[_Waiter]":
        """Ask members for rows, each as standby or not, under the identities they have by now."""
        self.is_split = self.is_split or len(parts) > 1
        earlier = [*self.waiters]
        for indexes, target, as_standby in parts:
            is_all = len(indexes) == len(self.batch)
            part = self.batch if is_all else self.batch.take(indexes)
            if earlier and not part.ids:
                part = replace(part, ids=_ids_of(earlier, indexes))
            waiter = self.new_waiter(part, indexes, target)
            waiter.asked = target.ask(part, hops=hops, as_standby=as_standby, done=waiter.resolve)
        return self.waiters[len(earlier) :]

    def note_refunded(self, rows: Iterable[int]) -> None:
        """Record refunded rows that a member had charged."""
        sources = self.verdicts.sources
        self.refunded.update([row for row in rows if sources[row] in _COUNTED])

    async def wait(self, waiters: Sequence[_Waiter]) -> None:
        """Wait until all of `waiters` are done, or all rows have an answer from any waiter."""
        while not self._is_over(waiters):
            self._signal = OneShotEvent()
            await self._signal.wait()

    def _is_over(self, waiters: Sequence[_Waiter]) -> bool:
        if all([waiter.is_done for waiter in waiters]):
            return True
        if len(waiters) == len(self.waiters):
            return False
        answered = {
            index
            for waiter in self.waiters
            if waiter.verdicts is not None
            for index in waiter.indexes
        }
        return answered.issuperset(self.missing)

    def _wake(self) -> None:
        self._signal.set()

    def take(self) -> None:
        """Fill in what has been answered by now; the first answer to a row holds."""
        if len(self.waiters) == 1 and len(self.waiters[0].indexes) == len(self.batch.keys):
            only = self.waiters[0]
            if only.verdicts is not None and not only.is_taken:
                # By far the most frequent case: one member decided all.
                only.is_taken = True
                self.verdicts, self.missing = only.verdicts, ()
                return
        elif self._take_whole():
            return
        for waiter in self.waiters:
            if waiter.refusal is not None:
                self.verdicts.refusal = waiter.refusal
            if waiter.is_shed:
                self.shed.update(waiter.indexes)
            verdicts = waiter.verdicts
            if verdicts is None or waiter.is_taken:
                continue
            waiter.is_taken = True
            missing = set(self.missing)
            rows = [row for row, index in enumerate(waiter.indexes) if index in missing]
            if len(rows) == len(waiter.indexes):
                self.verdicts.scatter(waiter.indexes, verdicts)
            else:
                for row in rows:
                    self.verdicts.put_row(waiter.indexes[row], verdicts.row(row))
            missing.difference_update(waiter.indexes)
            self.missing = [index for index in self.missing if index in missing]

    def note_busy(self) -> None:
        """Mark rows as shed whose member is too slow, but not silent."""
        for waiter in self.waiters:
            target = waiter.target
            if target is not None and not waiter.is_done and target.is_alive():
                self.shed.update(waiter.indexes)

    def _take_whole(self) -> bool:
        """Put the answers of several members together, when all are there and none was taken."""
        answered = [
            (waiter.indexes, waiter.verdicts)
            for waiter in self.waiters
            if waiter.verdicts is not None and not waiter.is_taken
        ]
        if len(answered) != len(self.waiters):
            return False
        joined = join_results(answered, len(self.batch))
        if joined is None:
            return False
        for waiter in self.waiters:
            waiter.is_taken = True
        self.verdicts, self.missing = joined, ()
        return True


def _ids_of(waiters: Sequence[_Waiter], indexes: Sequence[int]) -> list[CheckId]:
    """Identities under which `waiters` asked for these rows; empty when none has left."""
    wanted = set(indexes)
    found: dict[int, CheckId] = {}
    for waiter in waiters:
        if waiter.asked is None or wanted.isdisjoint(waiter.indexes):
            continue
        first = waiter.asked.identify()
        if first is not None:
            session, seq, row = first[0], first[1], first[2] + waiter.first_row
            for at, index in enumerate(waiter.indexes):
                found.setdefault(index, (session, seq, row + at))
    return [found.get(index, NO_ID) for index in indexes] if found else []


def _moved(old: Routes, new: Routes, batch: Batch, indexes: Sequence[int]) -> list[int]:
    """Those of the rows whose owner is another one now, within reach."""
    keys = [batch.keys[index] for index in indexes]
    owners = zip(indexes, old.owners(keys), new.owners(keys), strict=True)
    return [i for i, before, after in owners if before != after and after in new.targets]


def _split(
    routes: Routes, batch: Batch, indexes: Sequence[int], *, as_standby: bool
) -> list[tuple[Sequence[int], Target]]:
    """Cut rows by the member that decides, each part as large as a frame may be."""
    keys = batch.keys if len(indexes) == len(batch.keys) else [batch.keys[i] for i in indexes]
    members = [routes.standby(key) for key in keys] if as_standby else routes.owners(keys)
    first = members[0] if members else None
    if first is not None and len(keys) <= MAX_KEYS and members.count(first) == len(keys):
        target = routes.targets.get(first)
        return [] if target is None else [(indexes, target)]
    by_member: defaultdict[NodeId | None, list[int]] = defaultdict(list)
    for index, member in zip(indexes, members, strict=True):
        by_member[member].append(index)
    return [
        (chunk, routes.targets[member])
        for member, rows in by_member.items()
        if member is not None and member in routes.targets
        for chunk in _chunks(batch, rows)
    ]


def _chunks(batch: Batch, rows: list[int]) -> list[list[int]]:
    """Cut rows into parts of at most `MAX_KEYS`, never inside a group, which is no longer."""
    if len(rows) <= MAX_KEYS:
        return [rows]
    chunks: list[list[int]] = [[]]
    for _, run in groupby(rows, key=batch.group_numbers().__getitem__):
        group = list(run)
        if len(chunks[-1]) + len(group) > MAX_KEYS:
            chunks.append([])
        chunks[-1] += group
    return chunks


def _always_vetoes(row: int) -> bool:
    return True


def _nothing(answer: Results | AccessDenied | Shed | None) -> None:
    """Nobody waits for this answer."""
