"""Fuzz target: bytes of an unauthenticated caller, through a framer into a session of a node.

Bytes encode frames: hellos, valid and invalid, other messages, and random bytes. Some frames are
damaged or cut into pieces. No frame may raise an error. Only a hello with a valid credential may
be answered by a welcome. Until then, the node stores at most one small frame of the caller.

`python -m tests.fuzz.frames_before_hello --seconds 60 --seed 1`.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from msgpack import packb

from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from node.requests.sessions.session import Session
from ringfence.rules import RuleSet
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.transport.interface import Address, Timer
from ringfence.wire import (
    MAX_HELLO,
    MAX_MESSAGE,
    AskRules,
    BadMessage,
    Framer,
    Goodbye,
    Hello,
    Ping,
    Refused,
    Role,
    Welcome,
    decode,
    encode,
    frame,
    token_digest,
)
from tests.fuzz.bytes_to_histories import Choices, main

__all__ = ["run"]

SECRET = b"s" * 32
ACCESS = Access(
    (b"k" * 32,), "ringfence", {"app": TokenEntry(token_digest(SECRET), frozenset(Scope))}
)
GOOD = Hello(Role.CLIENT, "app", SECRET, 1)
CORPUS = [
    encode(message)
    for message in (
        GOOD,
        GOOD,
        Hello(Role.CLIENT, "app", bytes(32), 1),
        Hello(Role.NODE, "b", ACCESS.proof_of("b"), 1),
        Hello(Role.NODE, "b", ACCESS.proof_of("c"), 1),
        Ping(1),
        AskRules(1),
        Goodbye("bye"),
        Welcome("a", 1, 1),
    )
] + [
    packb([1, 1, 1, {}, SECRET, 1]),
    packb([9, 1, 1, [{}] * 300]),
    packb([[]] * 900),
    b"\x80" * 900,
]


class _Clock:
    def now(self) -> int:
        return 1


class _NoTimer:
    def cancel(self) -> None:
        pass


@dataclass
class _FakeConnection:
    """Fake connection and transport, which only record the calls."""

    sent: list[bytes] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)
    address: Address = ("192.0.2.1", 4000)
    binding: bytes = b""
    unsent: int = 0
    is_open: bool = True
    refusals: dict[str, int] = field(default_factory=dict)
    soon: list[Callable[[], None]] = field(default_factory=list)

    def send(self, payload: bytes) -> None:
        self.sent.append(payload)

    def close(self, code: int = 0, reason: str = "") -> None:
        self.closed.append((code, reason))

    def now(self) -> float:
        return 0.0

    def flush(self) -> None:
        pass

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        return _NoTimer()


NODE = Node(
    NodeSettings(name="a", listen="a:7101"), ACCESS, RuleSet(), clock=_Clock(), random=Random(1)
)
TRANSPORT = _FakeConnection()
NODE._running.transport = TRANSPORT  # type: ignore[assignment]


def run(data: bytes) -> int:
    """Run the history that `data` encodes; return the number of frames."""
    read = Choices(data)
    connection = _FakeConnection()
    # The fake has all that a session uses of its transport and of its connection.
    session = Session(NODE._api, connection, connection)  # type: ignore[arg-type]
    session.on_open(connection)
    framer = Framer(MAX_HELLO)
    frames = 0
    while read and not connection.closed:
        payload = _payload(read)
        stream = _framed(read, payload)
        while stream and not connection.closed:
            size = 1 + read.below(256) if read.below(2) else len(stream)
            try:
                messages = framer.feed(stream[:size])
                while messages and not connection.closed:
                    for message in messages:
                        _deliver(session, connection, message)
                    if connection.sent:
                        framer.limit = MAX_MESSAGE
                    messages = framer.feed(b"")
            except BadMessage as error:
                session.on_close(error.code, error.reason)
                connection.close(error.code, error.reason)
            stream = stream[size:]
            assert len(framer._buffer) < MAX_HELLO + 4 or connection.sent or connection.closed
        frames += 1
    if not connection.closed:
        session.on_close(0, "")
    assert not NODE.sessions._places._strangers
    assert not NODE.sessions._places._clients
    return frames


def _deliver(session: Session, connection: _FakeConnection, message: bytes) -> None:
    before = len(connection.sent)
    is_known = session._sender is not None
    session.on_message(message)
    while TRANSPORT.soon:
        TRANSPORT.soon.pop(0)()
    answers = [decode(each) for each in connection.sent[before:]]
    if is_known:
        return
    assert len(answers) <= 1
    if session._sender is not None:
        assert isinstance(answers[0], Welcome)
        hello = decode(message)
        assert isinstance(hello, Hello)
        assert len(message) <= MAX_HELLO
        assert _is_genuine(hello)
    else:
        assert all(isinstance(answer, Refused) for answer in answers)
        assert connection.closed, "a caller has one attempt"


def _is_genuine(hello: Hello) -> bool:
    """Return whether a hello has the secret of the token or a node's proof.

    It does not use the comparison of the node, which it verifies.
    """
    if hello.role is Role.NODE:
        return hello.credential == ACCESS.proof_of(hello.name)
    return (hello.name, hello.credential) == ("app", SECRET)


def _payload(read: Choices) -> bytes:
    kind = read.below(10)
    if kind == 0:
        return read.take(read.below(64))
    payload = bytearray(CORPUS[read.below(len(CORPUS))])
    if kind < 4:
        for _ in range(1 + read.below(3)):
            payload[read.below(256) % len(payload)] = read.below(256)
    elif kind == 4:
        del payload[read.below(256) % len(payload) :]
    elif kind == 5:
        payload += read.take(8)
    elif kind == 6:
        payload *= 1 + read.below(255)
    return bytes(payload)


def _framed(read: Choices, payload: bytes) -> bytes:
    kind = read.below(16)
    if kind == 0 or not payload:
        return read.take(4) + payload
    if kind == 1:
        return (len(payload) + read.below(9) - 4 & 0xFFFFFFFF).to_bytes(4, "big") + payload
    return frame(payload)


if __name__ == "__main__":
    sys.exit(main(run, "tests.fuzz.frames_before_hello", "frames", size=600))
