"""Requests that only members send: which part of the node answers, and refusals."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from gossip import BadDatagram, Record, Status
from node.context.containment import Containment
from node.membership.gossip_driver import NameInUse
from node.membership.peer_requests import PeerRequests
from ringfence.wire import (
    AskTakenOver,
    Copy,
    Digest,
    Done,
    ErrorCode,
    Exchange,
    Exchanged,
    Message,
    Pull,
    RecoverCounts,
    Refused,
    ReplicaRequest,
    TakenOver,
    TransferAck,
    TransferOffer,
    WindowCounts,
    decode,
)

FAR = Record("far", "h", 1, "dc2", "", 1.0, 1, 0, Status.ALIVE)
SNAPSHOT = cast(Any, "counters")


class Session:
    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def send_payload(self, payload: bytes) -> None:
        self.sent.append(decode(payload))


class Node:
    """Requests of members to a node whose parts record their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.counted: list[str] = []
        self.errors: dict[str, Exception] = {}
        """Errors that the parts raise, by the name of the method."""
        self.nursery: trio.Nursery | None = None
        self.later: list[Callable[[], None]] = []
        """Calls that are due in a later turn of the event loop."""
        self.transport = SimpleNamespace(call_soon=self.later.append)
        node = SimpleNamespace(
            counters=SimpleNamespace(add=self.counted.append, refused=self.counted.append),
            clock=SimpleNamespace(now=lambda: 5),
            running=self,
            containment=Containment(logging.getLogger("test"), lambda: 0.0),
        )
        shards = SimpleNamespace(
            ownership=SimpleNamespace(keep_replica=self._records("keep_replica")),
            handoff=SimpleNamespace(
                on_offer=self._records("on_offer"),
                on_acknowledged=self._records("on_acknowledged"),
                answer=self._answer_pull,
            ),
            lease_returns=SimpleNamespace(
                keys_of=lambda shards: [f"key of {shard}" for shard in shards],
                awaited=self._leases_returned,
            ),
            cross_dc=SimpleNamespace(
                receive_counts=self._records("receive_counts", Done(1)),
                receive_digest=self._records("receive_digest", Done(2)),
                receive_recovery_request=self._records("receive_recovery_request", Done(3)),
            ),
        )
        handler = SimpleNamespace(
            takeover=SimpleNamespace(
                taken_over_from=self._records("taken_over_from", [4, 7]),
                on_replica=self._records("on_replica"),
            ),
            slots=SimpleNamespace(call_all=self._records("call_all")),
        )
        cluster = SimpleNamespace(
            gossip=SimpleNamespace(exchanged=self._records("exchanged", Exchanged(9, b"")))
        )
        subscriptions = SimpleNamespace(end_all_denials=self._records("end_all_denials"))
        membership = SimpleNamespace(records={"far": FAR})
        parts: Any = (node, membership, cluster, shards, handler, subscriptions)
        self.requests = PeerRequests(*parts)

    def _records(self, name: str, answer: object = None) -> Any:
        def call(*arguments: object) -> object:
            self.calls.append((name, *arguments))
            if name in self.errors:
                raise self.errors[name]
            return answer

        return call

    @asynccontextmanager
    async def _leases_returned(self, keys: list[str], within: float) -> AsyncIterator[None]:
        self.calls.append(("leases returned", keys, within))
        yield
        self.calls.append(("leases granted again",))

    async def _answer_pull(self, name: str, pull: Pull) -> Message:
        self.calls.append(("answer", name, pull))
        if "answer" in self.errors:
            raise self.errors["answer"]
        return Done(pull.seq)

    def flush(self) -> None:
        self.calls.append(("flush",))

    def serve(self, message: Message, name: str = "far") -> list[Message]:
        session = Session()
        self.requests.serve(cast(Any, session), name, message)
        return session.sent


@pytest.mark.parametrize(
    ("message", "call", "answer"),
    [
        (TransferOffer(3, [1, 2]), ("on_offer", "far", [1, 2]), Done(3)),
        (TransferAck(3, [1, 2], 8), ("on_acknowledged", "far", [1, 2], 8), Done(3)),
        (AskTakenOver(3), ("taken_over_from", "far"), TakenOver(3, [4, 7])),
        (Digest(3, "w", [], []), ("receive_digest", "dc2", Digest(3, "w", [], [])), Done(2)),
        (
            RecoverCounts(3, [5]),
            ("receive_recovery_request", "dc2", RecoverCounts(3, [5])),
            Done(3),
        ),
        (Exchange(9, b"x"), ("exchanged", "far", Exchange(9, b"x")), Exchanged(9, b"")),
    ],
)
def test_each_request_is_answered_by_its_part_of_the_node(
    message: Message, call: tuple[object, ...], answer: Message
) -> None:
    node = Node()

    assert node.serve(message) == [answer]
    assert node.calls == [call]


@pytest.mark.parametrize(("name", "datacenter"), [("far", "dc2"), ("stranger", "")])
def test_counts_are_merged_in_a_later_turn(name: str, datacenter: str) -> None:
    node, session, counts = Node(), Session(), WindowCounts(3, "w", [], [])

    node.requests.serve(cast(Any, session), name, counts)
    assert (node.calls, session.sent) == ([], [])
    [merge] = node.later
    merge()

    assert node.calls == [("receive_counts", datacenter, counts), ("flush",)]
    assert session.sent == [Done(1)]


def test_at_most_1000_messages_with_counts_wait_to_be_merged() -> None:
    node, session, counts = Node(), Session(), WindowCounts(3, "w", [], [])

    for _ in range(1003):
        node.requests.serve(cast(Any, session), "far", counts)
    assert (len(node.later), len(session.sent)) == (1000, 3)
    for merge in node.later:
        merge()
    node.requests.serve(cast(Any, session), "far", counts)

    assert (len(node.later), len(session.sent)) == (1001, 1003)


def test_an_internal_error_while_counts_are_merged_is_answered() -> None:
    node, session = Node(), Session()
    node.errors = {"receive_counts": RuntimeError("bug")}

    node.requests.serve(cast(Any, session), "far", WindowCounts(3, "w", [], []))
    node.later[0]()

    [answer] = session.sent
    assert isinstance(answer, Refused)
    assert (answer.seq, answer.code) == (3, ErrorCode.INTERNAL)
    assert node.counted == ["internal"]


@pytest.mark.parametrize(
    ("origins", "which", "by_key"),
    [
        ([], [], []),
        ([(1,)], [], [(1,)]),
        ([(1,), (2, 3)], [1, 0, 1], [(2, 3), (1,), (2, 3)]),
    ],
)
def test_a_replica_is_kept_with_the_origins_of_its_counters(
    origins: list[tuple[int, ...]], which: list[int], by_key: list[tuple[int, ...]]
) -> None:
    node = Node()

    assert node.serve(Copy(3, SNAPSHOT, origins, which)) == [Done(3)]
    assert node.calls == [
        ("keep_replica", "far", SNAPSHOT, 5, by_key),
        ("on_replica", "far"),
    ]
    assert node.counted == ["copies_received"]


@pytest.mark.parametrize(
    ("error", "code", "counted"),
    [
        (NameInUse("the name is in use"), ErrorCode.NOT_PERMITTED, "name_in_use"),
        (BadDatagram("malformed", "no records"), ErrorCode.BAD_MESSAGE, "bad_records"),
    ],
)
def test_an_exchange_that_cannot_be_merged_is_refused_and_counted(
    error: Exception, code: ErrorCode, counted: str
) -> None:
    node = Node()
    node.errors = {"exchanged": error}

    assert node.serve(Exchange(9, b"x")) == [Refused(9, code, str(error))]
    assert node.counted == [counted]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_pull_is_answered_later_and_ends_the_subscriptions_of_clients(
    *, fails: bool
) -> None:
    """The receiver of the counters does not have the subscriptions."""
    node, session = Node(), Session()
    pull = Pull(6, [1], 0)
    if fails:
        node.errors = {"answer": RuntimeError("bug")}
    async with trio.open_nursery() as node.nursery:
        node.requests.serve(cast(Any, session), "far", pull)
        assert session.sent == []

    [answer] = session.sent
    if fails:
        assert isinstance(answer, Refused)
        assert (answer.seq, answer.code) == (6, ErrorCode.INTERNAL)
        assert node.counted == ["internal"]
        assert node.calls == [
            ("leases returned", ["key of 1"], 0.2),
            ("answer", "far", pull),
            ("flush",),
        ]
    else:
        assert answer == Done(6)
        assert node.counted == []
        assert [name for name, *_ in node.calls] == [
            "leases returned",
            "answer",
            "leases granted again",
            "end_all_denials",
            "call_all",
            "flush",
        ]


async def test_a_request_for_replicas_only_recalls_no_leases() -> None:
    node = Node()
    async with trio.open_nursery() as node.nursery:
        node.serve(Pull(6, [1], 0, replicas=ReplicaRequest.ONLY))

    assert ("leases returned", [], 0.2) in node.calls
