"""The counters that requests meet, laid into one batch, and the verdicts cut by request again.

Decides which rows stand or fall together. Finding the counters is the rules' affair, having the
batch decided the limiter's.
"""

from collections.abc import Sequence

from ringfence.client.decision import NO_RULE, Decision, Status, decide, status_of, unlimited
from ringfence.errors import ConfigError
from ringfence.limiter import MAX_CARRIED_SLOTS, Algorithm, Code, Limit
from ringfence.rules import Match, Rule
from ringfence.wire import MAX_KEYS, Batch, Op, Results

__all__ = ["RequestRows", "charged", "has_slots", "is_out_of_slots", "other_wait"]


class RequestRows:
    """Some requests, each with the counters it meets, as one batch."""

    __slots__ = ("_requests", "_rows", "_unmet", "batch", "rules")

    def __init__(
        self,
        op: Op,
        requests: Sequence[Sequence[Match | None]],
        costs: Sequence[int],
        unmet: Status = NO_RULE,
        ticket: int = 0,
    ) -> None:
        """`ticket`, if not 0, is that of a caller who waits for slots; cost 0 waits no longer.

        A request's cost is that of all its counters, save those whose descriptor names its own.

        `unmet` is the status of a descriptor that met no rule.

        Raises `ConfigError` when a request meets more counters than a frame can hold.
        """
        self._requests = requests
        self._unmet = unmet
        self._rows: list[int] = []
        """How many rows each request has."""
        self.batch = batch = Batch(op, [], [], [], [], [], [], [])
        self.rules: list[Rule] = []
        """The rule of each row."""
        is_carried = False
        for request, cost in zip(requests, costs, strict=True):
            before = len(self.rules)
            for match in request:
                if match is None or match.rule.limit is None:
                    continue
                self.rules.append(match.rule)
                batch.keys.append(match.key)
                batch.costs.append(cost if match.cost is None or not cost else match.cost)
                is_carried = is_carried or match.rule.carried
            self._rows.append(len(self.rules) - before)
        if is_carried:
            self._carry_limits()
        if ticket:
            batch.leases = [
                ticket if self.vetoes(row) and has_slots(rule) else 0
                for row, rule in enumerate(self.rules)
            ]
        if op is not Op.CHARGE and len(self.rules) > 1 and max(self._rows) > 1:
            self._group()

    def vetoes(self, row: int) -> bool:
        """Whether a denial of this row alone denies its request."""
        rule = self.rules[row]
        return not (rule.shadow or rule.quota)

    def read(self, verdicts: Results) -> list[Decision]:
        """Answer each request."""
        decisions = []
        has_leases = any(verdicts.outcomes.leases)
        start = 0
        for request, rows in zip(self._requests, self._rows, strict=True):
            statuses: list[Status] = []
            row = start
            for match in request:
                if match is None:
                    statuses.append(self._unmet)
                elif match.rule.limit is None:
                    statuses.append(unlimited(match.rule))
                else:
                    statuses.append(status_of(match.rule, verdicts, row))
                    row += 1
            leases = self._release(range(start, row), verdicts) if has_leases else None
            decisions.append(decide(statuses, leases))
            start += rows
        return decisions

    def undue(self, decisions: Sequence[Decision], verdicts: Results) -> list[int]:
        """Find the rows that were charged although their request was denied.

        The owners charged them because no single denial denies it: those of shadow and quota rules
        do not, nor those of limits that came along and were not laid into a group.
        """
        found: list[int] = []
        start = 0
        for decision, rows in zip(decisions, self._rows, strict=True):
            if rows > 1 and not decision.allowed:
                found += charged(verdicts, range(start, start + rows))
            start += rows
        return found

    def _group(self) -> None:
        batch = self.batch
        start = 0
        for rows in self._rows:
            if rows > 1:
                if rows > MAX_KEYS:
                    raise ConfigError(f"a request meets {rows} counters; at most {MAX_KEYS} can be")
                every = range(start, start + rows)
                if any([self.rules[row].carried and not self.vetoes(row) for row in every]):
                    # The owner takes a limit that comes along for one that denies all its group.
                    batch.groups.extend([1] * rows)
                else:
                    batch.groups.append(rows)
            elif rows:
                batch.groups.append(1)
            start += rows

    def _carry_limits(self) -> None:
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

    def _release(self, rows: range, verdicts: Results) -> Batch | None:
        """What gives back the places that these rows hold."""
        leases = verdicts.outcomes.leases
        held = [row for row in rows if leases[row]]
        if not held:
            return None
        taken = self.batch.take(held)
        return Batch(
            Op.REFUND,
            taken.keys,
            taken.costs,
            limits=taken.limits,
            which=taken.which,
            leases=[leases[row] for row in held],
        )


def has_slots(rule: Rule) -> bool:
    """Whether a rule limits concurrency: what it charges is a slot to be released."""
    return rule.limit is not None and rule.limit.algorithm is Algorithm.CONCURRENCY


def is_out_of_slots(decision: Decision) -> bool:
    """Whether a concurrency limit has denied, so that a release may end the denial at any time."""
    return any([_lacks_slot(status) for status in decision.statuses])


def other_wait(decision: Decision) -> float:
    """Seconds for which limits without slots deny a decision anyhow."""
    waits = [
        status.retry_after or 0.0
        for status in decision.statuses
        if not status.allowed
        and not _lacks_slot(status)
        and not (status.rule is not None and status.rule.quota)
    ]
    return max(waits, default=0.0)


def _lacks_slot(status: Status) -> bool:
    return not status.allowed and status.rule is not None and has_slots(status.rule)


def charged(verdicts: Results, rows: Sequence[int]) -> list[int]:
    """Tell which of these rows were charged."""
    codes = verdicts.outcomes.codes
    return [row for row in rows if codes[row] <= Code.OVER_SOFT]
