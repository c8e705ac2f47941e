"""P2: no duration ends a session, or makes a key unusable for other clients."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ringfence.limiter import (
    NS_PER_SECOND,
    Algorithm,
    Code,
    Engine,
    EngineRule,
    Limit,
    Outcomes,
    Tables,
)
from ringfence.limiter.compiled import compiled_tables, why_not_compiled
from ringfence.rules import Descriptor
from ringfence.rules.loading.yaml_files import LoadedRules, load_text
from ringfence.wire import Answer, ErrorCode, Message, Refused, Request, Results, decode, encode
from tests.node.requests.sessions.session_world import (
    APP,
    check,
    key_of,
    running_node,
    with_columns,
)

LONGEST_NS = 2**63 - 1
DAY_NS = 86_400 * NS_PER_SECOND
HUGE = Limit.of_ns(2**53 - 1, DAY_NS, Algorithm.TOKEN_BUCKET)
DAILY = Limit.of_ns(1, DAY_NS, Algorithm.TOKEN_BUCKET)
ALGORITHMS = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.CONCURRENCY]


def tables_of_engines() -> Sequence[Tables | None]:
    if why_not_compiled() is not None:
        return [None]
    return [None, compiled_tables(bytes(16), keeps_keys=True)]


@pytest.mark.parametrize(
    "tables", tables_of_engines(), ids=["reference", "compiled"][: len(tables_of_engines())]
)
@pytest.mark.parametrize("lowered", ALGORITHMS)
def test_no_engine_returns_a_duration_beyond_63_bits(
    tables: Tables | None, lowered: Algorithm
) -> None:
    engine = Engine(max_keys=100, tables=tables)
    engine.set_rules({1: EngineRule(HUGE)})
    key = (1).to_bytes(8, "big")
    engine.decide([key], [2**53 - 1000], [], [], [], DAY_NS)

    engine.set_rules({1: EngineRule(Limit.of_ns(1, DAY_NS, lowered))})
    denied = [engine.decide([key], [cost], [], [], [], DAY_NS) for cost in (1, 0)]

    for outcomes in denied:
        assert outcomes.codes == [Code.DENIED]
        assert 0 < outcomes.retry_after_ns[0] <= LONGEST_NS
        assert 0 < outcomes.reset_after_ns[0] <= LONGEST_NS


async def test_a_cost_near_2_to_the_53_under_a_carried_limit_affects_no_other_client(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        attacker, other = await world.call(APP), await world.call(replace(APP, session=2))
        poisoned, healthy = key_of("a", 0), key_of("a", 1)
        spend = with_columns(check(1, poisoned, cost=2**53 - 1000), limits=[HUGE])
        await attacker.send(spend)

        answers = await other.send(
            with_columns(check(1, poisoned), limits=[DAILY]), check(2, healthy), check(3, healthy)
        )

        assert not other.closed
        assert [codes_of(answer) for answer in answers] == [
            [Code.DENIED],
            [Code.ALLOWED],
            [Code.ALLOWED],
        ]


async def test_lowering_a_bucket_from_a_million_a_day_to_one_a_day_ends_no_session(
    autojump_clock: object,
) -> None:
    async with running_node(rules_of(1_000_000).rules) as world:
        caller = await world.call(APP)
        [match] = rules_of(1).rules.match("api", [Descriptor((("tenant", "t"),))])
        assert match is not None
        await caller.send(check_by_rule(1, match.key, 500_000))

        world.node.change_rules(rules_of(1).rules)
        [answer] = await caller.send(check_by_rule(2, match.key, 1))

        assert not caller.closed
        assert codes_of(answer) == [Code.DENIED]


@pytest.mark.internal_errors
async def test_an_answer_that_cannot_be_encoded_rejects_only_its_own_request(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)
        engine = world.node.shards.engine
        decide = engine.decide

        def decide_with_invalid_limit(keys: Sequence[bytes], *rest: object) -> Outcomes:
            outcomes = decide(keys, *rest)  # type: ignore[arg-type]
            if keys[0] == key_of("a", 7):
                outcomes.limits = [-1]
            return outcomes

        monkeypatch.setattr(engine, "decide", decide_with_invalid_limit)
        refused, answer = await caller.send(check(1, key_of("a", 7)), check(2, key_of("a", 8)))

        assert isinstance(refused, Refused)
        assert (refused.seq, refused.code) == (1, ErrorCode.INTERNAL)
        assert codes_of(answer) == [Code.ALLOWED]
        assert not caller.closed
        assert world.count("refused_internal") == 1
        assert world.count("internal_errors_encoding") == 1


def test_the_codec_limits_durations_to_63_bits() -> None:
    outcomes = Outcomes([2], [1], [0], [2**70], [2**70], [2**70], [0])

    answer = decode(encode(Answer(1, 0, 0, Results(outcomes, [0]))))

    assert isinstance(answer, Answer)
    assert answer.results.outcomes.retry_after_ns == [LONGEST_NS]
    assert answer.results.outcomes.reset_after_ns == [LONGEST_NS]
    assert answer.results.outcomes.delay_ns == [LONGEST_NS]


def rules_of(amount: int) -> LoadedRules:
    return load_text(
        "domain: api\ndescriptors:\n  - key: tenant\n    rate_limit:"
        f" {{unit: day, requests_per_unit: {amount}, algorithm: token_bucket}}\n"
    )


def check_by_rule(seq: int, key: bytes, cost: int) -> Request:
    """Return a check by the limit of the node's own rule."""
    return with_columns(check(seq, key, cost=cost), limits=[], which=[])


def codes_of(message: Message) -> list[int]:
    assert isinstance(message, Answer)
    return message.results.outcomes.codes
