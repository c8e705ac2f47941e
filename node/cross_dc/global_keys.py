"""Counts of keys with global rules, which apply to all data centers together: counts to send, and
received counts.

Only records changes; `node.cross_dc.counts` sends and merges.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from gossip.cross_dc.count_dissemination import NEAR, CountDissemination
from gossip.cross_dc.digested_counts import DigestedCounts, Rows
from gossip.cross_dc.lost_counts import LostCounts
from hashring import shard_of
from node.context.round_timer import RoundTimer
from ringfence.limiter import CHARGED_CODES, NS_PER_SECOND, Engine, Limit
from ringfence.rules import Rule, RuleSet
from ringfence.wire import Batch, Op, Results

_new_rows: Callable[[], Rows] = dict
with suppress(ImportError):  # The compiled module exists only where a C compiler was available.
    from ringfence.limiter.packed._packed_dict import PackedDict

    _new_rows = PackedDict

__all__ = ["GlobalKeys"]

_SLICE = 2000
"""Keys that one step of `GlobalKeys.mark_all` looks at."""


class GlobalKeys:
    """Changed, received and lost counts of keys whose rules apply across data centers, at one
    node."""

    def __init__(self, engine: Engine, clock: Callable[[], int], uptime: Callable[[], int]) -> None:
        """`clock` returns the time from which window numbers are computed. `uptime` is monotonic,
        in ns, and measures how long counts wait to be sent."""
        self._engine = engine
        self._clock = clock
        self._uptime = uptime
        self._rules: dict[bytes, Rule] = {}
        """Global rules by id."""
        self._ceilings: dict[bytes, int] = {}
        """Most units of a key that the limits of these rules admit, by rule id."""
        self.others: list[str] = []
        """Other data centers that have members."""
        self.to_send: dict[str, CountDissemination] = {}
        """Counts to send, by data center. A data center without members may get members again."""
        self.received: dict[str, DigestedCounts] = {}
        """Latest counts of each data center."""
        self.lost = LostCounts()
        """Shards that started without counters."""
        self.rounds = RoundTimer()
        """Rounds of the task that sends counts."""

    def set_rules(self, rules: RuleSet) -> bool:
        """Set the rules across data centers whose changed keys are recorded from now on; return
        whether there are new ones."""
        before = self._rules.keys()
        self._rules = {
            rule.id.to_bytes(8, "big"): rule
            for rule in rules.rules()
            if rule.scope == "global" and rule.limit is not None
        }
        self._ceilings = {
            prefix: rule.limit.ceiling for prefix, rule in self._rules.items() if rule.limit
        }
        return not self._rules.keys() <= before

    def on_decided(self, batch: Batch, results: Results) -> None:
        """Mark the keys of global rules that a batch has changed, so that other data centers
        receive their counts."""
        if not self._rules or not self.to_send or batch.op not in (Op.CHECK, Op.CHARGE):
            return
        now, outcomes = self._uptime(), results.outcomes
        for at, key in enumerate(batch.keys):
            ceiling = self._ceilings.get(key[:8])
            if ceiling is not None and batch.costs[at] and outcomes.codes[at] in CHARGED_CODES:
                self._mark_changed(key, now, is_near=outcomes.remaining[at] * NEAR <= ceiling)

    def on_started(self, shards: Sequence[int]) -> None:
        """Recover the counts of shards that this node starts without counters."""
        self.lost.start(shards)
        self.rounds.add_work()

    def on_arrived(self, keys: Sequence[bytes]) -> None:
        """Mark keys that another member counted before, so that their counts are sent to other data
        centers again."""
        if not keys:  # The usual case: most transferred shards have no keys.
            return
        now = self._uptime()
        shared = [key for key in keys if key[:8] in self._rules]
        for key in shared:
            self._mark_changed(key, now)
        for name in self.others:
            for key, cells in zip(
                shared, self._engine.remote_counts(name, shared, self._clock()), strict=True
            ):
                if cells:
                    self.on_received(name, key, cells)

    def mark_all(self, names: Sequence[str]) -> Iterator[None]:
        """Mark all keys of global rules, some at each step, to send their counts to data centers
        that know nothing of them."""
        for some in self._engine.key_slices(_SLICE) if self._rules else ():
            now = self._uptime()
            for key in some:
                if key[:8] in self._rules:
                    for name in names:
                        self.to_send[name].mark_changed(key, now)
            self.rounds.add_work()
            yield

    def _mark_changed(self, key: bytes, now: int, *, is_near: bool = False) -> None:
        for to_send in self.to_send.values():
            to_send.mark_changed(key, now, is_near=is_near)
        self.rounds.add_work()

    def on_received(self, writer: str, key: bytes, cells: list[int]) -> None:
        """Store the latest counts of a key that another data center has sent."""
        self.received_from(writer).put(key, cells)
        for to_send in self.to_send.values():
            to_send.on_received(key)

    def counts_for(self, name: str) -> CountDissemination:
        """Return the counts to send to a data center."""
        if name not in self.to_send:
            self.to_send[name] = CountDissemination(shard_of, _new_rows)
        return self.to_send[name]

    def received_from(self, writer: str) -> DigestedCounts:
        """Return the counts that were received from a data center."""
        if writer not in self.received:
            self.received[writer] = DigestedCounts(shard_of, _new_rows)
        return self.received[writer]

    @property
    def has_work(self) -> bool:
        """Whether counts wait to be sent, or must be requested from another data center."""
        is_waiting = any([len(each) for each in self.to_send.values()])
        return is_waiting or any([self.lost.to_request(name) for name in self.others])

    def limit_of(self, key: bytes) -> Limit | None:
        """Return the limit of a key; None when its rule does not apply across data centers."""
        rule = self._rules.get(key[:8])
        return None if rule is None else rule.limit

    def forget_expired(self) -> Iterator[None]:
        """Remove the stored counts of expired windows, some at each step."""
        now = self._clock()

        def is_over(key: bytes, number: int) -> bool:
            return self._is_over(key, number, now)

        self.lost.forget(is_over)
        acknowledged = [self.to_send[name].acknowledged for name in self.others]
        for counts in (*acknowledged, *self.received.values()):
            yield from counts.forget(is_over)

    def _is_over(self, key: bytes, number: int, now: int) -> bool:
        """Whether a window of a rate limit has ended. Calendar windows are numbered by their
        starting second."""
        limit = self.limit_of(key)
        if limit is None:
            return True
        if limit.calendar is not None:
            return (number * NS_PER_SECOND) + 2 * limit.period_ns < now
        return (number + 2 + limit.slots) * (limit.period_ns // limit.slots) < now
