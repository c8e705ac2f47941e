"""Cost of the wire codec for one check and for a batch of 256: time and bytes."""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from time import perf_counter_ns

from benchmarks.reporting.figure import Figure, measure
from ringfence.limiter.outcome import Outcomes
from ringfence.wire import Answer, Batch, Message, Op, Request, Results, decode, encode

__all__ = ["answer_of", "request_of", "run"]

SIZES = (1, 256)
KEY_BYTES = 20
CALLS = 20_000
"""Number of keys per sample, independent of the message size."""


def run(rounds: int) -> Iterator[Figure]:
    """Measure the encoding and decoding of requests with cost 1 per key, and of answers with
    different values per key."""
    for size in SIZES:
        messages: dict[str, Message] = {"request": request_of(size), "answer": answer_of(size)}
        for name, message in messages.items():
            yield from _both_ways(name, message, size, rounds)


def _both_ways(name: str, message: Message, size: int, rounds: int) -> Iterator[Figure]:
    payload = encode(message)
    ways: dict[str, Callable[[], object]] = {
        "encode": partial(encode, message),
        "decode": partial(decode, payload),
    }
    for way, call in ways.items():
        sample = partial(_us_each, call, CALLS // size)
        yield measure(f"wire.{name}_{way}_us_{size}", "us", sample, rounds)
    yield measure(f"wire.{name}_bytes_{size}", "bytes", lambda: float(len(payload)), 1)


def request_of(size: int) -> Request:
    """Return a request message with the given number of keys."""
    rng = Random(size)
    return Request(
        seq=123_456,
        view=rng.getrandbits(64),
        deadline_ms=250,
        hops=0,
        as_standby=False,
        batch=Batch(Op.CHECK, [rng.randbytes(KEY_BYTES) for _ in range(size)], [1] * size),
    )


def answer_of(size: int) -> Answer:
    """Return an answer message with the given number of decisions, whose values differ."""
    rng = Random(size)
    outcomes = Outcomes(
        codes=[rng.choice((0, 0, 0, 2)) for _ in range(size)],
        limits=[100] * size,
        remaining=[rng.randrange(100) for _ in range(size)],
        retry_after_ns=[rng.randrange(10**9) for _ in range(size)],
        reset_after_ns=[rng.randrange(60 * 10**9) for _ in range(size)],
        delay_ns=[0] * size,
        slot_ids=[0] * size,
    )
    return Answer(123_456, rng.getrandbits(64), 3, Results(outcomes, [0] * size))


def _us_each(call: Callable[[], object], calls: int) -> float:
    """Call a function in a plain loop; return microseconds per call, including the loop's few
    nanoseconds."""
    start = perf_counter_ns()
    for _ in range(calls):
        call()
    return (perf_counter_ns() - start) / calls / 1000
