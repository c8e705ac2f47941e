"""Batch of several requests: one row for each counter that a request matches, and its result.

Decides which rows form an all-or-nothing group. Rules find the counters; the dispatcher sends the
batch.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ringfence.client.decision import NO_RULE, Decision, Status, decide, status_of, unlimited
from ringfence.errors import ConfigError
from ringfence.limiter import MAX_CARRIED_SLOTS, Algorithm, Code, Limit
from ringfence.rules import Match, Rule
from ringfence.wire import BY_POLICY, MAX_KEYS, Batch, Op, Results

__all__ = ["RequestRows", "charged", "has_slots", "refused_rows", "spent_matches"]


class RequestRows:
    """Batch of several requests, each with the counters that it matches."""

    __slots__ = ("_requests", "_row_counts", "_unmatched", "batch", "rules")

    def __init__(
        self,
        op: Op,
        requests: Sequence[Sequence[Match | None]],
        costs: Sequence[int],
        unmatched: Status = NO_RULE,
        ticket: int = 0,
    ) -> None:
        """Create the batch of some requests. `unmatched` is the status of a descriptor that matches
        no rule.

        A descriptor may have its own cost; other counters get the cost of the request. `ticket`, if
        not 0, identifies a task that waits for slots; with cost 0 the task ends its wait. Raises
        `ConfigError` when a request matches more counters than a frame can hold.
        """
        self._requests = requests
        self._unmatched = unmatched
        self._row_counts: list[int] = []
        """Number of rows of each request."""
        self.batch = Batch(op, [], [], [], [], [], [], [])
        self.rules: list[Rule] = []
        """The rule of each row."""
        self._add_rows(requests, costs)
        if any([rule.carried for rule in self.rules]):
            self._add_limits()
        if ticket:
            self.batch.slot_ids = [
                ticket if self.denies_group(row) and has_slots(rule) else 0
                for row, rule in enumerate(self.rules)
            ]
        if op is not Op.CHARGE and len(self.rules) > 1 and max(self._row_counts) > 1:
            self._add_groups()

    def denies_group(self, row: int) -> bool:
        """Return whether the denial of a row, one counter of a request, denies the whole
        request."""
        rule = self.rules[row]
        return not (rule.shadow or rule.quota)

    def read(self, results: Results) -> list[Decision]:
        """Return the decision of each request from the results of the batch."""
        decisions = []
        is_refund = self.batch.op is Op.REFUND
        has_slots_taken = not is_refund and any(results.outcomes.slot_ids)
        refused = refused_rows(self.batch, results) if is_refund else []
        start = 0
        for request, count in zip(self._requests, self._row_counts, strict=True):
            statuses: list[Status] = []
            row = start
            for match in request:
                if match is None:
                    statuses.append(self._unmatched)
                elif match.rule.limit is None:
                    statuses.append(unlimited(match.rule))
                else:
                    status = status_of(match.rule, results, row)
                    if is_refund:
                        units = results.outcomes.slot_ids[row]
                        is_refused = row in refused
                        status = replace(status, refunded=units, is_refused=is_refused)
                    statuses.append(status)
                    row += 1
            release = self._release(range(start, row), results) if has_slots_taken else None
            decisions.append(decide(statuses, release))
            start += count
        return decisions

    def rows_to_refund(self, decisions: Sequence[Decision], results: Results) -> list[int]:
        """Return the rows that were charged although their request was denied.

        Owners charge such rows when the denial does not deny the group: denials of shadow and quota
        rules, and of limits that are sent with a check outside a group.
        """
        found: list[int] = []
        start = 0
        for decision, count in zip(decisions, self._row_counts, strict=True):
            if count > 1 and not decision.allowed:
                found += charged(results, range(start, start + count))
            start += count
        return found

    def _add_rows(self, requests: Sequence[Sequence[Match | None]], costs: Sequence[int]) -> None:
        batch = self.batch
        for request, cost in zip(requests, costs, strict=True):
            before = len(self.rules)
            for match in request:
                if match is None or match.rule.limit is None:
                    continue
                self.rules.append(match.rule)
                batch.keys.append(match.key)
                batch.costs.append(cost if match.cost is None or not cost else match.cost)
            self._row_counts.append(len(self.rules) - before)

    def _add_groups(self) -> None:
        batch = self.batch
        start = 0
        for count in self._row_counts:
            if count > 1:
                if count > MAX_KEYS:
                    raise ConfigError(
                        f"a request must match at most {MAX_KEYS} counters, got {count}; send "
                        "fewer descriptors"
                    )
                rows = range(start, start + count)
                if any([self.rules[row].carried and not self.denies_group(row) for row in rows]):
                    # For the owner, the denial of a carried limit denies the whole group.
                    batch.groups.extend([1] * count)
                else:
                    batch.groups.append(count)
            elif count:
                batch.groups.append(1)
            start += count

    def _add_limits(self) -> None:
        batch = self.batch
        places: dict[Limit, int] = {}
        for rule in self.rules:
            limit = rule.limit if rule.carried else None
            if limit is None:
                batch.which.append(0)
                continue
            if limit not in places:
                if limit.slots > MAX_CARRIED_SLOTS:
                    raise ConfigError(
                        f"slots must be at most {MAX_CARRIED_SLOTS} in a limit that comes with a "
                        f"check, got {limit.slots}; put this limit into the rules of the nodes"
                    )
                batch.limits.append(limit)
                places[limit] = len(batch.limits)
            batch.which.append(places[limit])

    def _release(self, rows: range, results: Results) -> Batch | None:
        """Create the request that releases the slots which the given rows acquired; None without
        slots."""
        slot_ids = results.outcomes.slot_ids
        held = [row for row in rows if slot_ids[row]]
        if not held:
            return None
        taken = self.batch.take(held)
        return Batch(
            Op.REFUND,
            taken.keys,
            taken.costs,
            limits=taken.limits,
            which=taken.which,
            slot_ids=[slot_ids[row] for row in held],
        )


def spent_matches(matches: Sequence[Match | None], decision: Decision) -> Sequence[Match | None]:
    """Select the counters that a check has charged, except those of concurrency limits.

    Selects none if the decision is that of another request, or if other rules match now.
    """
    if not decision.allowed or len(matches) != len(decision.statuses):
        return [None] * len(matches)
    return [
        match
        if match is not None
        and status.rule is not None
        and status.rule.id == match.rule.id
        and status.allowed
        and not status.over_shadow
        and status.source not in BY_POLICY
        and not has_slots(match.rule)
        else None
        for match, status in zip(matches, decision.statuses, strict=True)
    ]


def has_slots(rule: Rule) -> bool:
    """Whether a rule limits concurrency, so that it charges slots."""
    return rule.limit is not None and rule.limit.algorithm is Algorithm.CONCURRENCY


def charged(results: Results, rows: Sequence[int]) -> list[int]:
    """Return those of the given rows whose results show that their cost was charged."""
    codes = results.outcomes.codes
    return [row for row in rows if codes[row] <= Code.OVER_SOFT]


def refused_rows(batch: Batch, results: Results) -> list[int]:
    """Return the rows of a refund that a node refused."""
    codes = results.outcomes.codes
    return [row for row, cost in enumerate(batch.costs) if cost and codes[row] == Code.UNCHARGED]
