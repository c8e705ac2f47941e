"""Local cache: decisions that this process makes without asking a node.

Cached denials come from `denial_cache`, lent units from `leases`. This module makes rows and
decisions from both at low cost. For a short time it returns the same decision object again for a
cached denial. The `retry_after` of that object may then be slightly too long, but never too short.
"""

from collections.abc import Callable, Sequence

from ringfence.client.decision import Decision
from ringfence.client.local_cache.decision_counts import DecisionCounts
from ringfence.client.local_cache.denial_cache import Denial, DenialCache
from ringfence.client.local_cache.leases import Lease, LeaseAsk, Leases
from ringfence.client.requests.check_ops import decision_of
from ringfence.limiter import Code, Outcomes
from ringfence.rules import Rule
from ringfence.wire import Batch, OutcomeRow, Results, Source

__all__ = ["LocalCache"]

_MAX_REPEAT_SECONDS = 0.05
"""Maximum seconds for which a decision is repeated."""
_MAX_REPEAT_SHARE = 1 / 16
"""Maximum share of a denial's remaining time for which it is repeated."""
_MAX_REPEATABLE = 16_384
_MAX_UNCOUNTED = 4096
"""Maximum number of denials whose repeats are not counted yet."""
_DENIED = Code.DENIED.value
_CACHE = Source.CACHE.value

_Entries = tuple[tuple[str, str], ...]


class LocalCache:
    """Makes decisions from cached denials and leases, with the clock of the event loop."""

    def __init__(
        self,
        rule_of: Callable[[int], Rule | None],
        denial_cache_size: int,
        leases: Leases | None,
        now: Callable[[], float],
        counts: DecisionCounts | None = None,
    ) -> None:
        """`leases` is None when leases are disabled; `counts` receives the decisions of this
        cache."""
        self._repeatable: dict[tuple[str, int], dict[_Entries, Denial]] = {}
        """Denials decided a moment ago, by domain and cost, then by descriptor entries."""
        self._repeatable_until = float("-inf")
        self._repeatable_count = 0
        self._uncounted: list[Denial] = []
        """Denials that were repeated since `collect`."""
        self.denials = DenialCache(rule_of, denial_cache_size, self._repeatable.clear, now)
        self.leases = Leases(_send_nothing) if leases is None else leases
        self._uses_leases = leases is not None
        self._now = now
        self._counts = counts

    def repeat(self, domain: str, descriptors: object, cost: int) -> Decision | None:
        """Return the decision that denied an equal request a moment ago; None without one."""
        known = self._repeatable.get((domain, cost)) if self._repeatable else None
        if known is None or type(descriptors) is not dict or self._now() >= self._repeatable_until:
            return None
        try:
            denial = known.get(tuple(descriptors.items()))
        except TypeError:
            return None  # A value cannot be hashed; matching reports it.
        if denial is None:
            return None
        denial.repeats += 1
        return denial.decision

    def repeat_all(
        self, domain: str, requests: Sequence[object], costs: object
    ) -> list[Decision] | None:
        """Return the recent denials of many requests of equal cost; None unless each of them was
        denied a moment ago."""
        if not self._repeatable or type(costs) is not int or self._now() >= self._repeatable_until:
            return None
        try:
            known = self._repeatable[domain, costs]
            denials = [known[tuple(each.items())] for each in requests]  # type: ignore[attr-defined]
        except (AttributeError, KeyError, TypeError):
            return None
        for denial in denials:
            denial.repeats += 1
        return [denial.decision for denial in denials]  # type: ignore[misc]  # All have one.

    def decide(
        self,
        domain: str,
        descriptors: object,
        rule: Rule,
        key: bytes,
        cost: int,
        now: float | None = None,
    ) -> Decision | None:
        """Decide a request that matches a single counter; return None when the owner of the key
        must be asked."""
        if now is None:
            now = self._now()
        denial = self._find_denial(key, cost, now)
        if denial is None:
            return self._spend_lease(rule, key, cost, now)
        denial.decision = decision = decision_of(rule, denial.row(now))
        self._count_repeat(denial)
        if type(descriptors) is dict:
            self._add_repeatable(domain, cost, tuple(descriptors.items()), denial, now)
        return decision

    def decide_all(
        self,
        domain: str,
        requests: Sequence[object],
        rules: Sequence[Rule],
        keys: Sequence[bytes],
        costs: Sequence[int],
    ) -> list[Decision | None] | None:
        """Decide many requests as `decide` does; return None when the cache can decide none of
        them."""
        now = self._now()
        if not self.denials and not self.leases and all(costs):
            self._count_asked(keys, now)
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
                    lease.extra_units += cost - 1
                add(lease.decision if left >= lease.repeat_until_left else _decision(lease, rule))
            elif lease is None and denial_of(key) is None:
                add(None)
                if cost:
                    unknown.append(key)
            else:
                add(self.decide(domain, each, rule, key, cost, now))
        self._count_asked(unknown, now)
        return decisions

    def results(self, batch: Batch) -> Results | None:
        """Decide a batch of checks; return None unless cached denials decide the whole batch."""
        if batch.groups or batch.limits:
            return None
        now = self._now()
        rows: list[OutcomeRow] = []
        denials: list[Denial] = []
        for key, cost in zip(batch.keys, batch.costs, strict=True):
            denial = self._find_denial(key, cost, now)
            if denial is None:
                return None
            denials.append(denial)
            rows.append(denial.row(now))
        for denial in denials:
            self._count_repeat(denial)
        *columns, sources = map(list, zip(*rows, strict=True))
        return Results(Outcomes(*columns), sources)

    def undo(
        self,
        decisions: Sequence[Decision | None],
        keys: Sequence[bytes],
        costs: Sequence[int],
    ) -> None:
        """Return the units of leases that cancelled checks have just spent."""
        for decision, key, cost in zip(decisions, keys, costs, strict=True):
            if decision is not None and decision.source is Source.LEASE:
                self.leases.undo(key, cost)

    def collect(self) -> None:
        """Add the decisions that this cache made since the last call to the counts for the next
        report."""
        self.leases.report()
        repeated, self._uncounted = self._uncounted, []
        self._repeatable.clear()  # The next repetition adds the denial to the list again.
        for denial in repeated:
            if self._counts is not None:
                self._counts.add(denial.key, _DENIED, _CACHE, denial.repeats)
            denial.repeats = 0

    def _count_repeat(self, denial: Denial) -> None:
        denial.repeats += 1
        if denial.repeats == 1:
            self._uncounted.append(denial)
            if len(self._uncounted) > _MAX_UNCOUNTED:
                self.collect()

    def _count_asked(self, keys: Sequence[bytes], now: float) -> None:
        """Count the keys of checks that are sent to nodes, so that frequent keys get a lease."""
        if self._uses_leases and keys:
            self.leases.count_all(keys, now)

    def _spend_lease(self, rule: Rule, key: bytes, cost: int, now: float) -> Decision | None:
        if not self._uses_leases or not cost:
            return None
        lease = self.leases.spend(key, cost, now)
        if lease is None:
            return None
        return lease.decision if lease.left >= lease.repeat_until_left else _decision(lease, rule)

    def _find_denial(self, key: bytes, cost: int, now: float) -> Denial | None:
        denial = self.denials.find(key)
        if denial is None or now >= denial.until or cost != denial.cost or not cost:
            return None
        return denial

    def _add_repeatable(
        self, domain: str, cost: int, entries: _Entries, denial: Denial, now: float
    ) -> None:
        """Remember a denial decision for a short time; all remembered decisions expire together."""
        if now >= self._repeatable_until or self._repeatable_count >= _MAX_REPEATABLE:
            self._repeatable.clear()
            self._repeatable_count, self._repeatable_until = 0, now + _MAX_REPEAT_SECONDS
        self._repeatable_until = min(
            self._repeatable_until, now + (denial.until - now) * _MAX_REPEAT_SHARE
        )
        self._repeatable.setdefault((domain, cost), {})[entries] = denial
        self._repeatable_count += 1


def _decision(lease: Lease, rule: Rule) -> Decision:
    """Create the decision of a check that a lease allows. It is reused until a sixteenth of the
    remaining units is spent."""
    lease.repeat_until_left = lease.left - lease.left // 16
    lease.decision = decision = decision_of(rule, lease.row())
    return decision


def _send_nothing(request: LeaseAsk) -> bool:
    """Send no lease request, because leases are disabled."""
    return False
