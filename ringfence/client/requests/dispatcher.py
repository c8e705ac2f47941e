"""General path of requests: match rules, decide, retry with new rules, and refund denied requests.

A single simple check takes the shorter path of `Limiter.check`. It comes here only in unusual
cases: unknown rules, an outage, several counters.
"""

from collections.abc import Sequence

from msgspec import Struct

from ringfence.client.checkpoints import Checkpoints
from ringfence.client.decider import Decider, is_never_denying
from ringfence.client.decision import (
    NO_RULE,
    UNDECIDED,
    UNDECIDED_DENIED,
    UNLIMITED,
    Decision,
    decide,
)
from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.client.requests.check_ops import decisions_of
from ringfence.client.requests.descriptors import Descriptors, described
from ringfence.client.requests.refusal_log import RefusalLog
from ringfence.client.requests.request_rows import RequestRows, charged, has_slots, spent_matches
from ringfence.client.requests.targets import Counters, DescriptorTarget, Target
from ringfence.client.requests.unmatched_checks import UnmatchedChecks
from ringfence.errors import ConfigError, PeerUnavailable, RingfenceError
from ringfence.limiter import MAX_CARRIED_SLOTS, Code, Outcomes
from ringfence.rules import Match, OnFailure, Rule, RuleSet
from ringfence.rules.descriptor_tree import place as place_of
from ringfence.rules.keys import decode_key
from ringfence.transport.addresses import format_address
from ringfence.wire import BY_POLICY, Batch, Op, Results, Source, empty_results

__all__ = ["Dispatcher", "require_chargeable"]

_COUNTED_SEPARATELY = (Op.REFUND, Op.CHARGE)
"""Operations whose rows are counted even if another row of the request is not."""
_MAX_ADDRESSES = 4
"""Maximum number of addresses in the text of an error; its attribute has all of them."""
_UNKNOWN = Code.UNKNOWN_RULE.value
_BY_POLICY = frozenset([source.value for source in BY_POLICY])


class Dispatcher:
    """Sends requests to the decider, and converts the results into decisions."""

    def __init__(
        self,
        decider: Decider,
        local_cache: LocalCache | None,
        unmatched: UnmatchedChecks,
        checkpoints: Checkpoints,
        *,
        raise_on_outage: bool,
    ) -> None:
        self._decider = decider
        self._local_cache = local_cache
        self._unmatched = unmatched
        self._checkpoints = checkpoints
        self.refusal_log = RefusalLog(decider.time)
        """Log of refused refunds and releases."""
        self._raise_on_outage = raise_on_outage

    async def ask(
        self,
        op: Op,
        targets: Sequence[Counters],
        costs: list[int],
        timeout: float | None = None,  # noqa: ASYNC109 - a bound that ends in a decision
        ticket: int = 0,
        age_ns: int = 0,
    ) -> list[Decision]:
        """Apply the operation `op` to the counters of each target; retry once where a node did not
        know a rule.

        `ticket`, if not 0, identifies a task that waits for slots. `age_ns` is for refunds: the
        time since the units were spent, or 0 for the newest units.
        """
        rules = self._decider.rules
        matches = [target.match(rules) for target in targets]
        if self._decider.knows_rules:
            for target, found in zip(targets, matches, strict=True):
                if isinstance(target, DescriptorTarget) and not any(found):
                    self._unmatched.note(rules, target.domain, target.descriptors)
        decisions, has_unknown = await self._decide(op, matches, costs, timeout, ticket, age_ns)
        if has_unknown:
            await self._retry_unknown(op, targets, costs, timeout, decisions, age_ns)
        return decisions

    async def ask_plain(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        rules: list[Rule],
        keys: list[bytes],
        costs: list[int],
    ) -> list[Decision]:
        """Check requests that match exactly one counter each, so that none needs an
        all-or-nothing group."""
        known: list[Decision | None] | None = None
        if self._local_cache is not None:
            known = self._local_cache.decide_all(domain, requests, rules, keys, costs)
        if known is None:
            return await self._ask_owners(domain, requests, rules, keys, costs)
        missing = [at for at, decision in enumerate(known) if decision is None]
        try:
            if not missing:
                await self._checkpoints.take()
            else:
                answers = await self._ask_owners(
                    domain,
                    [requests[at] for at in missing],
                    [rules[at] for at in missing],
                    [keys[at] for at in missing],
                    [costs[at] for at in missing],
                )
                for place, decision in zip(missing, answers, strict=True):
                    known[place] = decision
        except BaseException:  # Cancelled checks, or those without a decision, spend nothing.
            if self._local_cache is not None:
                self._local_cache.undo(known, keys, costs)
            raise
        return [decision for decision in known if decision is not None]

    async def answer_unmatched(
        self,
        target: DescriptorTarget,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Decision:
        """Create the decision of a check that matches no rule, if the rules are known."""
        if not self._decider.knows_rules:
            return (await self.ask(Op.CHECK, [target], [1], timeout))[0]
        self._unmatched.note(self._decider.rules, target.domain, target.descriptors)
        await self._checkpoints.take()
        return UNLIMITED

    async def complete(
        self,
        target: DescriptorTarget,
        cost: int,
        decision: Decision,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Decision:
        """Repeat a single check if a node did not know its rule. With `raise_on_outage`, raise
        an error if no node decided it."""
        if self._raise_on_outage and decision.source in BY_POLICY:
            matches = target.match(self._decider.rules)
            keys = [match.key for match in matches if match is not None]
            raise self._undecided(keys, len(keys))
        decisions = [decision]
        await self._retry_unknown(Op.CHECK, [target], [cost], timeout, decisions)
        return decisions[0]

    async def refund(
        self,
        target: Target,
        decision: Decision,
        units: int,
        age: float = 0.0,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Decision:
        """Refund units of those counters of a target that a decision has charged `age` seconds ago.

        Units that only `on_failure: local` has counted are refunded in this process: a node that
        answers again has never counted them. The counters that nodes have not charged are without
        a rule in the returned decision.
        """
        local = _Charged(target, decision, is_local=True).match(self._decider.rules)
        if any(local):
            batch = RequestRows(Op.CHECK, [local], [units]).batch
            results = empty_results(len(batch))
            results.sources = [Source.LOCAL] * len(batch)
            asked_at = self._decider.time() - age
            self._decider.refund(batch, range(len(batch)), results, asked_at)
        at_nodes = _Charged(target, decision, is_local=False)
        age_ns = max(0, round(age * 1e9))
        answer = (await self.ask(Op.REFUND, [at_nodes], [units], timeout, age_ns=age_ns))[0]
        pairs = zip(answer.statuses, decision.statuses, strict=False)
        # Later, the counter no longer contains the units.
        lost = [new.rule for new, old in pairs if new.is_refused and age < old.reset_after]
        self.refusal_log.warn("units", lost)
        return answer

    async def _ask_owners(
        self,
        domain: str,
        requests: Sequence[Descriptors],
        rules: list[Rule],
        keys: list[bytes],
        costs: list[int],
    ) -> list[Decision]:
        batch = Batch(Op.CHECK, keys, costs)
        asked_at = self._decider.time()
        results = await self._decider.decide(batch, is_never_denying, None)
        self._require_decided(batch, results, asked_at)
        decisions = decisions_of(rules, results.rows())
        if _UNKNOWN in results.outcomes.codes:
            targets = [DescriptorTarget(domain, described(each)) for each in requests]
            await self._retry_unknown(Op.CHECK, targets, costs, None, decisions)
        return decisions

    async def _retry_unknown(
        self,
        op: Op,
        targets: Sequence[Counters],
        costs: Sequence[int],
        timeout: float | None,  # noqa: ASYNC109
        decisions: list[Decision],
        age_ns: int = 0,
    ) -> None:
        """Fetch the rules, repeat the requests with unknown rules, and replace their decisions.

        The second request contains the limits, because the owner may have older rules.
        """
        unknown = [
            at
            for at, decision in enumerate(decisions)
            if any([status.is_unknown for status in decision.statuses])
        ]
        await self._decider.refresh_rules()
        rules = self._decider.rules
        matches = [_carried(targets[at].match(rules), decisions[at], op) for at in unknown]
        unknown_costs = [costs[at] for at in unknown]
        fresh, _ = await self._decide(op, matches, unknown_costs, timeout, age_ns=age_ns)
        for at, decision in zip(unknown, fresh, strict=True):
            if op in _COUNTED_SEPARATELY:
                decisions[at] = _merged(decisions[at], decision)
            else:
                decisions[at] = decision

    async def _decide(
        self,
        op: Op,
        requests: Sequence[Sequence[Match | None]],
        costs: list[int],
        timeout: float | None,  # noqa: ASYNC109
        ticket: int = 0,
        age_ns: int = 0,
    ) -> tuple[list[Decision], bool]:
        """Send the checks of several requests to the decider, in one batch with a row for each
        counter.

        Returns the decision of each request, and whether an owner did not know a rule.
        """
        if op is Op.CHARGE:
            require_chargeable("charge", requests)
        unmatched = NO_RULE
        if not self._decider.knows_rules and any([None in request for request in requests]):
            if self._raise_on_outage:
                raise self._outage("no node of the cluster has sent its rules yet", [])
            is_denied = self._decider.on_failure is OnFailure.DENY and op in (Op.CHECK, Op.CHARGE)
            unmatched = UNDECIDED_DENIED if is_denied else UNDECIDED
        rows = RequestRows(op, requests, costs, unmatched, ticket)
        batch = rows.batch
        if age_ns:
            limits = [rule.limit for rule in rows.rules]
            batch.ages_ns = [limit.refund_age_ns(age_ns) if limit else age_ns for limit in limits]
        if not batch.keys:
            await self._checkpoints.take()
            return rows.read(Results(Outcomes(), [])), False
        if op is Op.CHECK and self._local_cache is not None:
            known = self._local_cache.results(batch)
            if known is not None:
                await self._checkpoints.take()
                return rows.read(known), False
        asked_at = self._decider.time() if len(batch) > 1 else 0.0
        results = await self._decider.decide(batch, rows.denies_group, timeout)
        self._require_decided(batch, results, asked_at)
        decisions = rows.read(results)
        if op is Op.CHECK and len(batch) > 1:
            to_refund = rows.rows_to_refund(decisions, results)
            if to_refund:
                self._decider.refund(batch, to_refund, results, asked_at)
        return decisions, _UNKNOWN in results.outcomes.codes

    def _require_decided(self, batch: Batch, results: Results, asked_at: float) -> None:
        """Raise the error of an outage or `AccessDenied`, if any, after refunding what was
        charged."""
        refusal: RingfenceError | None = results.refusal
        is_outage = self._raise_on_outage and not _BY_POLICY.isdisjoint(results.sources)
        if refusal is None and not is_outage:
            return
        if batch.op is Op.CHECK:
            every = charged(results, range(len(batch)))
            self._decider.refund(batch, every, results, asked_at)
        if refusal is not None:
            raise refusal
        rows = zip(batch.keys, results.sources, strict=True)
        raise self._undecided([key for key, source in rows if source in _BY_POLICY], len(batch))

    def _undecided(self, keys: Sequence[bytes], total: int) -> RingfenceError:
        """Create the error for the checks that no node decided, by their keys, of `total`
        checks."""
        who, home = "no node of the cluster", self._home_of(keys)
        if home:
            who = f"no node of data center {home!r}, the home of this rule,"
        part = f"{len(keys)} of " if len(keys) < total else ""
        checks = "check" if total == 1 else "checks"
        return self._outage(f"{who} decided {part}{total} {checks} in time", keys)

    def _home_of(self, keys: Sequence[bytes]) -> str:
        """Return the data center that decides all these keys by their rules; empty without one."""
        rules = [self._decider.rules.by_id(decode_key(key)[0]) for key in keys]
        homes = dict.fromkeys(["" if rule is None else rule.home for rule in rules])
        return next(iter(homes)) if len(homes) == 1 else ""

    def _outage(self, what: str, keys: Sequence[bytes]) -> RingfenceError:
        """Create the error for an outage, with the addresses of the nodes that decide the keys."""
        addresses = self._decider.addresses_of(keys)
        shown = [format_address(address) for address in addresses[:_MAX_ADDRESSES]]
        more = ["..."] if len(addresses) > _MAX_ADDRESSES else []
        asked = f" (asked {', '.join(shown + more)})" if shown else ""
        return self._decider.outage() or PeerUnavailable(what + asked, addresses=addresses)


class _Charged(Struct, frozen=True):
    """Those counters of a target that a decision has charged, in this process or at nodes."""

    target: Target
    decision: Decision
    is_local: bool

    def match(self, rules: RuleSet) -> Sequence[Match | None]:
        """Return the counters by the given rules; see `Target.match`."""
        spent = spent_matches(self.target.match(rules), self.decision)
        sources = [status.source for status in self.decision.statuses]
        return [
            match if match is not None and (sources[at] is Source.LOCAL) == self.is_local else None
            for at, match in enumerate(spent)
        ]


def _carried(matches: Sequence[Match | None], before: Decision, op: Op) -> list[Match | None]:
    """Select the counters to check again, and attach the limits for owners that do not have the
    rules.

    A check with an unknown rule charged nothing, so it is repeated as a whole. Charges and refunds
    repeat only the counters whose rule was unknown, because the others were counted.
    """
    return [
        Match(_with_limit(match.rule), match.key, match.metric, match.cost)
        if match is not None and (op not in _COUNTED_SEPARATELY or status.is_unknown)
        else None
        for match, status in zip(matches, before.statuses, strict=True)
    ]


def _with_limit(rule: Rule) -> Rule:
    """Return the rule in the form that sends its limit with each check, if nodes accept such a
    limit."""
    if rule.limit is not None and rule.limit.slots > MAX_CARRIED_SLOTS:
        return rule
    return rule.as_carried()


def _merged(before: Decision, after: Decision) -> Decision:
    """Combine two decisions: the second one replaces the statuses of rules that owners did not
    know at first."""
    return decide(
        [
            new if old.is_unknown else old
            for old, new in zip(before.statuses, after.statuses, strict=True)
        ]
    )


def require_chargeable(method: str, requests: Sequence[Sequence[Match | None]]) -> None:
    """Raise `ConfigError` if a charge would affect a concurrency limit. `method` is its caller."""
    for request in requests:
        for match in request:
            if match is not None and has_slots(match.rule):
                rule = match.rule
                got = f"rule {place_of(rule.domain, rule.path)!r}" if rule.domain else "a Limit"
                raise ConfigError(
                    f"{method} must have limits other than concurrency, got {got} with slots; "
                    "leave its descriptor out, and use hold or release for slots"
                )
