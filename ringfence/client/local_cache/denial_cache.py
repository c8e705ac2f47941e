"""What owners have denied, and until when it stays denied whatever else is asked.

The denial of a bucket or a window is a function of time alone: until `retry_after` has passed, the
same cost, and any greater one, would be denied again. Only a refund, a reset or a raised limit ends
it early, and the owner tells of those on the connection that the denial came by. So a denial is
remembered only while that connection stands, and forgotten with it.

It counts from when the check was asked for, which was before the owner looked at its clock: a
denial never lasts longer here than there. A core: whoever asks says what time it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ringfence.client.decision import Decision
from ringfence.limiter import Algorithm, Code
from ringfence.rules import Rule
from ringfence.wire import Batch, Op, OutcomeRow, Results, Source

__all__ = ["Denial", "DenialCache"]

_DENIED = Code.DENIED.value
_OWNER = Source.OWNER.value
_CACHE = Source.CACHE.value
_ID_BYTES = 8


@dataclass(slots=True, eq=False)
class Denial:
    """One key that was denied. Not frozen, for one is made per denial."""

    key: bytes
    cost: int
    """The cost that was denied; a smaller one may pass."""
    asked_at: float
    until: float
    limit: int
    remaining: int
    retry_after_ns: int
    reset_after_ns: int
    teller: Hashable
    """Who tells when it ends early."""
    repeats: int = 0
    """Decisions made by it that `Near.collect` has not counted yet."""
    said: Decision | None = None
    """The decision that was last made by it."""

    def row(self, now: float) -> OutcomeRow:
        """Say it again, with what is left of its durations."""
        passed_ns = int((now - self.asked_at) * 1e9)
        retry_ns = max(1, self.retry_after_ns - passed_ns)
        reset_ns = max(retry_ns, self.reset_after_ns - passed_ns)
        return (_DENIED, self.limit, self.remaining, retry_ns, reset_ns, 0, 0, _CACHE)


class DenialCache:
    """At most `most` keys; the one that was denied longest ago makes room for another."""

    def __init__(self, rule_of: Callable[[int], Rule | None], most: int) -> None:
        self._rule_of = rule_of
        self._most = most
        self._denials: OrderedDict[bytes, Denial] = OrderedDict()
        self.find = self._denials.get
        """What was denied of a key, if anything; whoever asks looks at cost and time."""
        self.on_lifted: Callable[[], object] = _nothing
        """Told whenever something is forgotten that may not be over."""

    def __len__(self) -> int:
        return len(self._denials)

    def learn(self, teller: Hashable, batch: Batch, verdicts: Results, asked_at: float) -> None:
        """Remember what a batch, asked at `asked_at`, was denied and surely will be again."""
        codes = verdicts.outcomes.codes
        if _DENIED not in codes or batch.op is not Op.CHECK:
            return
        alone = _alone(batch.groups)
        for row, code in enumerate(codes):
            if (
                code == _DENIED
                and verdicts.sources[row] == _OWNER
                and (alone is None or row in alone)
                and not (batch.which and batch.which[row])
                and self._lasts(batch.keys[row])
            ):
                self._remember(teller, batch, verdicts, row, asked_at)

    def lift(self, teller: Hashable, keys: Sequence[bytes]) -> None:
        """Forget keys that a teller has told of; no keys stand for all of that teller's."""
        if not keys:
            self.forget(teller)
        self.drop([key for key in keys if _is_by(self._denials.get(key), teller)])

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget keys, whoever denied them."""
        for key in keys:
            self._denials.pop(key, None)
        self.on_lifted()

    def forget(self, teller: Hashable) -> None:
        """Forget everything that a teller would no longer tell us of."""
        gone = [key for key, denial in self._denials.items() if denial.teller == teller]
        self.drop(gone)

    def clear(self) -> None:
        """Forget everything."""
        self._denials.clear()
        self.on_lifted()

    def _remember(
        self, teller: Hashable, batch: Batch, verdicts: Results, row: int, asked_at: float
    ) -> None:
        outcomes = verdicts.outcomes
        key, retry_ns = batch.keys[row], outcomes.retry_after_ns[row]
        self._denials[key] = Denial(
            key,
            batch.costs[row],
            asked_at,
            asked_at + retry_ns / 1e9,
            outcomes.limits[row],
            outcomes.remaining[row],
            retry_ns,
            outcomes.reset_after_ns[row],
            teller,
        )
        self._denials.move_to_end(key)
        if len(self._denials) > self._most:
            self._denials.popitem(last=False)

    def _lasts(self, key: bytes) -> bool:
        """Whether a denial of this key's rule depends on time alone, and is the last word.

        Places are released at any time; other data centers may lend their part of a split limit;
        and what shadow and quota rules say must be counted each time.
        """
        rule = self._rule_of(int.from_bytes(key[:_ID_BYTES], "big"))
        return (
            rule is not None
            and rule.limit is not None
            and rule.limit.algorithm is not Algorithm.CONCURRENCY
            and rule.scope == "datacenter"
            and not (rule.shadow or rule.quota)
        )


def _is_by(denial: Denial | None, teller: Hashable) -> bool:
    return denial is not None and denial.teller == teller


def _nothing() -> None:
    """Nobody wants to know."""


def _alone(groups: Sequence[int]) -> set[int] | None:
    """Tell the rows that share their fate with no other; None for all of them."""
    if not groups:
        return None
    alone: set[int] = set()
    start = 0
    for run in groups:
        if run == 1:
            alone.add(start)
        start += run
    return alone
