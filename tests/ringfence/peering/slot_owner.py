"""Slot queue over an engine, with a clock that a test moves."""

from functools import partial

from ringfence.limiter import Algorithm, Code, Engine, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.slot_queue import SlotQueue
from ringfence.rules import Rule
from ringfence.wire import Batch, Op, Results, Source

SECOND = 10**9
SLOTS, RATE, SHADOW, WIDE, SOFT = 7, 8, 9, 10, 11
"""Ids of the rules."""
RULES = {
    SLOTS: Rule(SLOTS, "d", (("job", None),), Limit.of_ns(2, 60 * SECOND, Algorithm.CONCURRENCY)),
    RATE: Rule(RATE, "d", (("user", None),), Limit.of_ns(1, 60 * SECOND, Algorithm.FIXED_WINDOW)),
    SHADOW: Rule(
        SHADOW, "d", (("s", None),), Limit.of_ns(1, 60 * SECOND, Algorithm.CONCURRENCY), shadow=True
    ),
    WIDE: Rule(WIDE, "d", (("w", None),), Limit.of_ns(4, 60 * SECOND, Algorithm.CONCURRENCY)),
    SOFT: Rule(
        SOFT,
        "d",
        (("o", None),),
        Limit.of_ns(1, 60 * SECOND, Algorithm.CONCURRENCY, soft_permille=2000),
    ),
}
KEY = SLOTS.to_bytes(8, "big") + b"x"
USER = RATE.to_bytes(8, "big") + b"x"
SHADOWED = SHADOW.to_bytes(8, "big") + b"x"
WIDE_KEY = WIDE.to_bytes(8, "big") + b"x"
SOFT_KEY = SOFT.to_bytes(8, "big") + b"x"


class Owner:
    """A queue over an engine; waiting checks that it notifies are in `called`."""

    def __init__(self, rules=RULES, **bounds):
        engine = Engine(max_keys=100)
        engine.set_rules(
            {
                number: EngineRule(rule.limit, denies_group=not rule.shadow)
                for number, rule in RULES.items()
            }
        )
        self.called = []
        self.called_of = []
        self.earlier = 0
        self.now = 1000 * SECOND
        self.queue = SlotQueue(
            partial(decide_batch, engine),
            rules.get,
            self._call,
            self._on_earlier,
            **bounds,
        )

    def _call(self, who, tickets):
        self.called += tickets
        self.called_of.append((who, tickets))

    def _on_earlier(self):
        self.earlier += 1

    def ask(self, batch, who="client"):
        outcomes = self.queue.decide(batch, self.now)
        verdicts = Results(outcomes, [Source.OWNER] * len(batch))
        self.queue.on_answered(who, batch, verdicts, self.now)
        return outcomes

    def check(self, ticket=0, key=KEY, cost=1, who="client"):
        """Return the slot, 0 when denied."""
        outcomes = self.ask(
            Batch(Op.CHECK, [key], [cost], slot_ids=[ticket] if ticket else []), who
        )
        assert (outcomes.codes[0] == Code.DENIED) == (outcomes.slot_ids[0] == 0 and cost > 0)
        return outcomes.slot_ids[0]

    def retry_after_ns(self):
        return self.queue.decide(Batch(Op.CHECK, [KEY], [1]), self.now).retry_after_ns[0]

    def release(self, slot_id, age_ns=0, key=KEY):
        self.ask(
            Batch(Op.REFUND, [key], [1], slot_ids=[slot_id], ages_ns=[age_ns] if age_ns else [])
        )

    def leave(self, ticket):
        self.ask(Batch(Op.CHECK, [KEY], [0], slot_ids=[ticket]))

    def later(self, ns):
        self.now += ns
        self.queue.tick(self.now)


def full():
    owner = Owner()
    return owner, owner.check(), owner.check()
