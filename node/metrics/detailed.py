"""Detailed metrics for the admin port: decisions by rule, frame sizes, and times.

Counting must be cheap: each frame costs a few dictionary operations, with the rule's id and the
result code as key. Rule names and results are looked up when the metrics are read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from time import perf_counter_ns

from node.metrics.throttled_keys import PERIOD, ThrottledKeys
from ringfence import runtime
from ringfence.limiter import Code
from ringfence.rules import Rule, RuleSet
from ringfence.rules.descriptor_tree import place
from ringfence.rules.ruleset import metric_of_key
from ringfence.wire import BY_POLICY, Batch, Op, Results, Source

__all__ = [
    "MAX_LABELS",
    "MAX_METRICS",
    "NO_RULE",
    "OTHER_RULES",
    "OTHER_VALUES",
    "TIMED_EVERY",
    "Metrics",
    "MetricsSwitch",
    "Span",
]

MAX_METRICS = 1000
"""Most metrics of rules with `detailed_metric` or `value_to_metric`."""
OTHER_VALUES = "(other values)"
MAX_LABELS = 200
"""Most rules with a label; the rest is counted together."""
OTHER_RULES = "(other rules)"
NO_RULE = "(no rule here)"
"""Label of carried limits, and of rules that this node does not have."""
_MAX_IDS = 4096
"""Most rule ids before their counts are named: clients may send any id."""
_LONGEST_LABEL = 200
_LOOK_EVERY = 256
"""Frames of one check between two checks of that bound."""
_SIZES = 16
TIMED_EVERY = 16
"""One frame of so many is timed."""
_DENIALS = (Code.DENIED.value, Code.NEVER.value)
_UNDECIDED = (Source.LOCAL, *BY_POLICY)
_ALLOWED = Code.ALLOWED.value
"""0: any other code is true."""
_OWNER = Source.OWNER.value
_rule_of_key = itemgetter(slice(0, 8))
_RESULTS = {
    Code.ALLOWED: "allowed",
    Code.OVER_SOFT: "over_soft",
    Code.DENIED: "denied",
    Code.NEVER: "denied",
    Code.UNCHARGED: "uncharged",
    Code.UNKNOWN_RULE: "unknown_rule",
}


_PLACES = {"allowed": 0, "over_soft": 0, "denied": 1, "shadow_denied": 2, "quota_denied": 2}
_MAX_RULES = 32


class Span:
    """Histogram with powers of two: `counts[n]` is the number of values with n binary digits."""

    def __init__(self, classes: int) -> None:
        self.counts = [0] * classes
        self.sum = 0

    def add(self, value: int) -> None:
        """Add one value to the histogram; its last class contains all larger values."""
        size = value.bit_length()
        counts = self.counts
        counts[size if size < len(counts) else -1] += 1
        self.sum += value


class Metrics:
    """Detailed metrics of one node since they were switched on."""

    def __init__(
        self,
        rule_of: Callable[[int], Rule | None],
        stopwatch: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.stopwatch = stopwatch
        """Stopwatch in ns; no decision depends on it."""
        self.throttled = ThrottledKeys()
        self.frames = 0
        """Frames that were decided here."""
        self._larger = Span(_SIZES)
        """Checks per frame, without frames of one check by its owner."""
        self.decided_ns = Span(33)
        """Times of frames that were decided at once; a sample."""
        self.forwarded_ns = Span(38)
        """Times until the answer of frames that waited for another node or for a shard."""
        self._rule_of = rule_of
        self._asked: Counter[bytes] = Counter()
        """Checks decided by this node for its own shards, by rule: most are allowed."""
        self._odd: Counter[tuple[bytes, int, int]] = Counter()
        """Those that are not plainly allowed, and all other decisions, by rule, code and source."""
        self._labels: dict[str, None] = {}
        self._named: Counter[tuple[str, str, str]] = Counter()
        self._detailed_rules: frozenset[bytes] = frozenset()
        """Ids of rules whose metrics show values."""
        self._by_key: Counter[tuple[bytes, int]] = Counter()
        """Checks by these rules, by key and code, that have no name yet."""
        self._metrics: dict[str, None] = {}
        self._by_metric: Counter[tuple[str, str]] = Counter()

    def set_rules(self, rules: RuleSet) -> None:
        """Keep detailed metrics for those rules of this rule set that request them."""
        self._name_metrics()
        detailed = [rule.id.to_bytes(8, "big") for rule in rules.rules() if rule.is_detailed]
        self._detailed_rules = frozenset(detailed)

    def decided(self, batch: Batch, results: Results, *, as_standby: bool) -> None:
        """Count the checks of a batch that this node decided."""
        if batch.op is not Op.CHECK:
            return
        keys, codes = batch.keys, results.outcomes.codes
        self.frames = frames = self.frames + 1
        if self._detailed_rules:
            self._count_metrics(keys, codes)
        if len(keys) == 1 and not as_standby:  # The most frequent frame.
            self._asked[keys[0][:8]] += 1
            if codes[0]:
                self._count_odd(keys, codes)
            if frames % _LOOK_EVERY:
                return
        else:
            self._larger.add(len(keys))
            if as_standby:
                self._count_each(keys, codes, [Source.STANDBY] * len(keys))
            else:
                self._asked.update(map(_rule_of_key, keys))
                if codes.count(_ALLOWED) != len(keys):
                    self._count_odd(keys, codes)
        if len(self._asked) + len(self._odd) > _MAX_IDS:
            self._name()

    @property
    def is_timed(self) -> bool:
        """Whether to measure the time of the next frame of checks; only a sample is measured, for
        speed."""
        return not self.frames % TIMED_EVERY

    @property
    def frame_checks(self) -> Span:
        """Return a histogram of the number of checks in each frame that this node decided."""
        span = Span(_SIZES)
        lone = self.frames - sum(self._larger.counts)
        span.counts = [*self._larger.counts]
        span.counts[1] += lone
        span.sum = self._larger.sum + lone
        return span

    def undecided(self, batch: Batch, results: Results) -> None:
        """Count the checks of a batch that the failure policy decided."""
        if batch.op is Op.CHECK:
            rows = [row for row, by in enumerate(results.sources) if by in _UNDECIDED]
            codes = results.outcomes.codes
            self._count_metrics([batch.keys[row] for row in rows], [codes[row] for row in rows])
            self._count_each(
                [batch.keys[row] for row in rows],
                [results.outcomes.codes[row] for row in rows],
                [results.sources[row] for row in rows],
            )

    def reported(self, rows: Iterable[tuple[bytes, int, int, int]], named: int) -> None:
        """Count decisions that a client made itself: `rows` has key, result code, source and count
        of each.

        Only the first `named` rows have the key of a counter; the others have the id of a rule.
        """
        denied: Counter[bytes] = Counter()
        unnamed = 0
        for at, (key, code, source, count) in enumerate(rows):
            self._odd[key[:8], code, source] += count
            if at < named:
                self._count_metrics([key], [code], count)
            elif key in self._detailed_rules:
                rule = self._rule_of(int.from_bytes(key, "big"))
                self._by_metric[OTHER_VALUES, _result_of(rule, code)] += count
            if code in _DENIALS and at < named:
                denied[key] += count
            elif code in _DENIALS:
                unnamed += count
        self.throttled.reported(denied, unnamed)
        if len(self._asked) + len(self._odd) > _MAX_IDS:
            self._name()

    def most_denied_rules(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Return the rules with the most denials, each with three counts.

        The counts are: allowed, denied, and denied in shadow or quota mode. The list is in
        descending order, with at most `_MAX_RULES` rules.
        """
        found: dict[str, list[int]] = {}
        for (rule, result, _), count in self.decisions().items():
            place = _PLACES.get(result)
            if place is not None:
                found.setdefault(rule, [0, 0, 0])[place] += count
        ranked = sorted(found.items(), key=lambda row: (-row[1][1], -sum(row[1]), row[0]))
        return [(rule, (row[0], row[1], row[2])) for rule, row in ranked[:_MAX_RULES]]

    def detailed_decisions(self) -> dict[tuple[str, str], int]:
        """Return the number of decisions by metric name and result, for rules whose metric names
        contain descriptor values."""
        self._name_metrics()
        return dict(self._by_metric)

    def _count_metrics(self, keys: Sequence[bytes], codes: Sequence[int], count: int = 1) -> None:
        detailed = self._detailed_rules
        for key, code in zip(keys, codes, strict=True):
            if key[:8] in detailed:
                self._by_key[key, code] += count
        if len(self._by_key) > _MAX_IDS:
            self._name_metrics()

    def _name_metrics(self) -> None:
        by_key, self._by_key = self._by_key, Counter()
        for (key, code), count in by_key.items():
            rule = self._rule_of(int.from_bytes(key[:8], "big"))
            name = None if rule is None else metric_of_key(rule, key)
            if name is None or (name not in self._metrics and len(self._metrics) >= MAX_METRICS):
                name = OTHER_VALUES
            else:
                self._metrics[name] = None
            self._by_metric[name, _result_of(rule, code)] += count

    def decisions(self) -> dict[tuple[str, str, str], int]:
        """Return the number of decisions by rule, result and source; the numbers never decrease."""
        self._name()
        return dict(self._named)

    def label_of(self, rule: Rule | None) -> str:
        """Return the metric label of a rule. The number of different labels is bounded."""
        if rule is None:
            return NO_RULE
        name = place(rule.domain, rule.path)
        if len(name) > _LONGEST_LABEL:
            name = f"{name[:_LONGEST_LABEL]}... {rule.id:016x}"
        if name not in self._labels:
            if len(self._labels) >= MAX_LABELS:
                return OTHER_RULES
            self._labels[name] = None
        return name

    def _count_odd(self, keys: Sequence[bytes], codes: Sequence[int]) -> None:
        """Count the checks of a batch whose result is not `ALLOWED`, and record their denied
        keys."""
        odd = self._odd
        denied: list[bytes] = []
        for key, code in zip(keys, codes, strict=True):
            if code:
                odd[key[:8], code, _OWNER] += 1
                if code in _DENIALS:
                    denied.append(key)
        self.throttled.denied(denied)

    def _count_each(
        self, keys: Sequence[bytes], codes: Sequence[int], sources: Sequence[int]
    ) -> None:
        """Count checks that the failure policy or a standby decided, each with the source of its
        decision."""
        for key, code, source in zip(keys, codes, sources, strict=True):
            self._odd[key[:8], code, source] += 1
        self.throttled.denied(
            [key for key, code in zip(keys, codes, strict=True) if code in _DENIALS]
        )

    def _name(self) -> None:
        """Move counts from rule ids to rule labels, because the ids of removed rules become
        unknown."""
        odd, self._odd = self._odd, Counter()
        asked, self._asked = self._asked, Counter()
        for (rule_id, code, source), count in odd.items():
            if source == Source.OWNER:
                asked[rule_id] -= count
            self._add(rule_id, code, source, count)
        for rule_id, count in asked.items():
            self._add(rule_id, _ALLOWED, Source.OWNER, count)

    def _add(self, rule_id: bytes, code: int, source: int, count: int) -> None:
        if not count:
            return
        rule = self._rule_of(int.from_bytes(rule_id, "big"))
        self._named[self.label_of(rule), _result_of(rule, code), str(Source(source))] += count


class MetricsSwitch:
    """Detailed metrics of one node, which are off until an operator first reads them."""

    def __init__(self, rule_of: Callable[[int], Rule | None]) -> None:
        self.active: Metrics | None = None
        self.began = 0
        """Time at which the metrics were turned on, in ns since the start of the node."""
        self._rule_of = rule_of

    def turn_on(self, rules: RuleSet, now: int) -> Metrics:
        """Turn on the detailed metrics at `now`, with the labels of the current rules."""
        if self.active is None:
            self.active = Metrics(self._rule_of)
            self.active.set_rules(rules)
            self.began = now
        return self.active

    async def renew_denied_keys(self) -> None:
        """Start a new period of the denied keys at regular intervals."""
        while True:
            await runtime.sleep(PERIOD)  # A period of the metric, not a wait for an event.
            if self.active is not None:
                self.active.throttled.turn()


def _result_of(rule: Rule | None, code: int) -> str:
    result = _RESULTS[Code(code)]
    if result == "denied" and rule is not None:
        # All quota rules of a request together decide a denial; they are checked separately.
        return "shadow_denied" if rule.shadow else "quota_denied" if rule.quota else result
    return result
