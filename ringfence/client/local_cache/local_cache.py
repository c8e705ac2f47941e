"""What this process may decide itself, without asking anybody: the near end of the limiter.

Decides nothing of its own: denials that stand come from `denial_cache`, borrowed units from
`leases`. Here they become the rows and decisions that an application gets, as cheaply as can be,
for this is the path of those who ask again and again. What was said is said again for a moment, the
same object, so that a denial costs no more than finding it: its `retry_after` is then too long by
that moment, and never too short.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ringfence.client.decision import Decision
from ringfence.client.local_cache.denial_cache import Denial, DenialCache
from ringfence.client.local_cache.leases import Lease, LeaseAsk, Leases
from ringfence.client.local_cache.local_decisions import LocalDecisions
from ringfence.limiter import Code, Outcomes
from ringfence.rules import Rule
from ringfence.wire import Batch, OutcomeRow, Results, Source

__all__ = ["LocalCache"]

_LONGEST_MOMENT = 0.05
"""Seconds that a decision is said again at most."""
_PART = 1 / 16
"""And at most this part of what is left of the denial."""
_MOST_SAID = 16_384
_MOST_REPEATED = 4096
"""Denials whose repeats wait to be counted."""
_ALLOWED, _DENIED = Code.ALLOWED.value, Code.DENIED.value
_LEASE, _CACHE = Source.LEASE.value, Source.CACHE.value

_Entries = tuple[tuple[str, str], ...]


class LocalCache:
    """The decisions that need no member, by the clock of the event loop."""

    def __init__(
        self,
        denials: DenialCache,
        leases: Leases | None,
        now: Callable[[], float],
        tally: LocalDecisions | None = None,
    ) -> None:
        """`leases` is None where nothing is to be borrowed; `tally` receives what was decided."""
        self.denials = denials
        self.leases = Leases(_nobody) if leases is None else leases
        self._may_borrow = leases is not None
        self._now = now
        self._said: dict[tuple[str, int], dict[_Entries, Denial]] = {}
        """What was said a moment ago, by domain and cost, and by entries."""
        self._repeated: list[Denial] = []
        """Denials that were repeated since `collect`."""
        self._tally = tally
        if tally is not None:
            self.leases.paid = partial(_add_paid, tally)
        self._until = float("-inf")
        """When the moment is over, for all of it."""
        self._count = 0
        denials.on_lifted = self._said.clear

    def again(self, domain: str, descriptors: object, cost: int) -> Decision | None:
        """What was said to the same request a moment ago."""
        said = self._said.get((domain, cost)) if self._said else None
        if said is None or type(descriptors) is not dict or self._now() >= self._until:
            return None
        try:
            denial = said.get(tuple(descriptors.items()))
        except TypeError:
            return None  # Something is no text; whoever matches says what.
        if denial is None:
            return None
        denial.repeats += 1
        return denial.said

    def again_all(
        self, domain: str, requests: Sequence[object], costs: object
    ) -> list[Decision] | None:
        """What was said to the same requests, at one cost, a moment ago; None unless to all."""
        if not self._said or type(costs) is not int or self._now() >= self._until:
            return None
        try:
            said = self._said[domain, costs]
            denials = [said[tuple(each.items())] for each in requests]  # type: ignore[attr-defined]
        except (AttributeError, KeyError, TypeError):
            return None
        for denial in denials:
            denial.repeats += 1
        return [denial.said for denial in denials]  # type: ignore[misc]  # All were said.

    def decide(
        self,
        domain: str,
        descriptors: object,
        rule: Rule,
        key: bytes,
        cost: int,
        now: float | None = None,
    ) -> Decision | None:
        """Decide a request of one descriptor that meets one plain rule; None to ask a member."""
        if now is None:
            now = self._now()
        denial = self._standing(key, cost, now)
        if denial is None:
            return self._spend(rule, key, cost, now)
        denial.said = decision = Decision(rule, denial.row(now))
        self._repeat(denial)
        if type(descriptors) is dict:
            self._say(domain, cost, tuple(descriptors.items()), denial, now)
        return decision

    def decide_all(
        self,
        domain: str,
        requests: Sequence[object],
        rules: Sequence[Rule],
        keys: Sequence[bytes],
        costs: Sequence[int],
    ) -> list[Decision | None] | None:
        """Decide many requests, each as `decide` does; None when nothing is known of any."""
        now = self._now()
        if not self.denials and not self.leases and all(costs):
            self._note_asked(keys, now)
            return None
        lease_of, denial_of = self.leases.find, self.denials.find
        decisions: list[Decision | None] = []
        add = decisions.append
        unknown: list[bytes] = []
        for each, rule, key, cost in zip(requests, rules, keys, costs, strict=True):
            lease = lease_of(key)
            if lease is not None and lease.left - cost >= lease.low and now < lease.until and cost:
                left = lease.left = lease.left - cost
                if cost != 1:
                    lease.beyond += cost - 1
                add(lease.said if left >= lease.said_until else _say_of(lease, rule))
            elif lease is None and denial_of(key) is None:
                add(None)
                if cost:
                    unknown.append(key)
            else:
                add(self.decide(domain, each, rule, key, cost, now))
        self._note_asked(unknown, now)
        return decisions

    def verdicts(self, batch: Batch) -> Results | None:
        """Decide a batch of checks; None unless no member need be asked for any of it."""
        if batch.groups or batch.limits:
            return None
        now = self._now()
        rows: list[OutcomeRow] = []
        denials: list[Denial] = []
        for key, cost in zip(batch.keys, batch.costs, strict=True):
            denial = self._standing(key, cost, now)
            if denial is None:
                return None
            denials.append(denial)
            rows.append(denial.row(now))
        for denial in denials:
            self._repeat(denial)
        *columns, sources = map(list, zip(*rows, strict=True))
        return Results(Outcomes(*columns), sources)

    def collect(self) -> None:
        """Count in the tally what was decided since this was last called."""
        self.leases.report()
        repeated, self._repeated = self._repeated, []
        self._said.clear()  # So that each repeat from now on finds its denial in the list again.
        for denial in repeated:
            if self._tally is not None:
                self._tally.add(denial.key, _DENIED, _CACHE, denial.repeats)
            denial.repeats = 0

    def _repeat(self, denial: Denial) -> None:
        """Count one decision that a denial made."""
        denial.repeats += 1
        if denial.repeats == 1:
            self._repeated.append(denial)
            if len(self._repeated) > _MOST_REPEATED:
                self.collect()

    def _note_asked(self, keys: Sequence[bytes], now: float) -> None:
        """Note keys that a member is asked to charge, for those that are hot are borrowed."""
        if self._may_borrow and keys:
            self.leases.count_all(keys, now)

    def _spend(self, rule: Rule, key: bytes, cost: int, now: float) -> Decision | None:
        if not self._may_borrow or not cost:
            return None
        lease = self.leases.spend(key, cost, now)
        if lease is None:
            return None
        return lease.said if lease.left >= lease.said_until else _say_of(lease, rule)

    def _standing(self, key: bytes, cost: int, now: float) -> Denial | None:
        denial = self.denials.find(key)
        if denial is None or now >= denial.until or not 0 < cost >= denial.cost:
            return None
        return denial

    def _say(
        self,
        domain: str,
        cost: int,
        entries: _Entries,
        denial: Denial,
        now: float,
    ) -> None:
        """Say a decision again for a moment, whose end is the same for all that is said."""
        if now >= self._until or self._count >= _MOST_SAID:
            self._said.clear()
            self._count, self._until = 0, now + _LONGEST_MOMENT
        self._until = min(self._until, now + (denial.until - now) * _PART)
        self._said.setdefault((domain, cost), {})[entries] = denial
        self._count += 1


def _say_of(lease: Lease, rule: Rule) -> Decision:
    """Tell what is left, again and again until a sixteenth of it is spent."""
    lease.said_until = lease.left - lease.left // 16
    lease.said = decision = Decision(rule, lease.row())
    return decision


def _nobody(ask: LeaseAsk) -> None:
    """Nothing is borrowed."""


def _add_paid(tally: LocalDecisions, key: bytes, checks: int) -> None:
    tally.add(key, _ALLOWED, _LEASE, checks)
