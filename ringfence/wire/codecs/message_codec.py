"""Messages to bytes and back: one msgpack array each, its type number first.

Decides the layout of every message and refuses whatever deviates from it. Where one message ends
and the next begins is `framing`'s business; whether its sender may send it, the receiver's.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from msgpack import packb, unpackb

from hashring.member import MAX_WEIGHT, MIN_WEIGHT
from ringfence.errors import LocalProtocolError
from ringfence.wire.bounds import MAX_CREDENTIAL, MAX_HELLO, MAX_ITEMS, MAX_REASON, MAX_U64
from ringfence.wire.codecs.fields import bad_field, binary, integer, items, plain, real, text
from ringfence.wire.codecs.lease_codec import NEAR_READERS, lay_out_near
from ringfence.wire.codecs.metric_codec import METRIC_READERS, lay_out_metrics
from ringfence.wire.codecs.peer_codec import READERS, VALIDATED_AS_LAID_OUT, lay_out
from ringfence.wire.codecs.request_codec import (
    ANSWER,
    ANSWER_FIELDS,
    REQUEST,
    REQUEST_FIELDS,
    read_answer,
    read_request,
    write_answer,
    write_request,
)
from ringfence.wire.errors import BadMessage, Cause, WrongVersion
from ringfence.wire.framing import MAX_MESSAGE
from ringfence.wire.messages import Message
from ringfence.wire.messages.cluster_messages import (
    AskMembers,
    AskRules,
    AskStats,
    MemberRow,
    Members,
    Plain,
    Rules,
    Stats,
)
from ringfence.wire.messages.lease_messages import (
    DenialRevoked,
    LeaseGrant,
    LeaseRecall,
    LeaseRequest,
    SlotsFree,
    SubscribeDenials,
)
from ringfence.wire.messages.metric_messages import AskThrottled, Report, Throttled
from ringfence.wire.messages.request_messages import Answer, Request
from ringfence.wire.messages.session_messages import (
    Goodbye,
    Hello,
    Ping,
    Pong,
    Refused,
    Role,
    Welcome,
)

__all__ = ["VERSION", "PackedRules", "decode", "encode"]

VERSION = 1
"""Version of the wire protocol, said in `Hello` and in `Welcome`."""

_HELLO = 1
_WELCOME = 2
_REFUSED = 3
_ASK_MEMBERS = 6
_MEMBERS = 7
_ASK_RULES = 8
_RULES = 9
_ASK_STATS = 10
_STATS = 11
_PING = 12
_PONG = 13
_GOODBYE = 14

_ROLES = (Role.NODE, Role.CLIENT)
_STATES = frozenset({"joining", "alive", "suspect", "forwarding", "leaving", "dead", "left"})
_ROW_FIELDS = 7
_MAX_PORT = 65_535
_SHORT = 4096
"""Bytes of a message in which any number of arrays costs less than two milliseconds."""
_MAX_CODE = 65_535
_VALIDATED_AS_WRITTEN = (REQUEST, ANSWER, *VALIDATED_AS_LAID_OUT)


def encode(message: Message) -> bytes:
    """Turn a message into the payload of one frame.

    Raises `LocalProtocolError` for a message that `decode` would refuse: a bound is broken, columns
    do not fit each other, or all of it is larger than `MAX_MESSAGE`. Checks and counters are hot,
    and validated as they are laid out; any other message is simply read back.
    """
    try:
        fields = _lay_out(message)
        payload: bytes = packb(fields)
        if fields[0] not in _VALIDATED_AS_WRITTEN:
            decode(payload)
    except BadMessage as error:
        raise LocalProtocolError(f"cannot send: {error.reason}") from error
    except (TypeError, ValueError, OverflowError) as error:
        name = type(message).__name__
        raise LocalProtocolError(
            f"cannot send: msgpack has no place for a {name}: {error}"
        ) from error
    if len(payload) > MAX_MESSAGE:
        raise LocalProtocolError(f"cannot send: {_too_large(payload, MAX_MESSAGE).reason}")
    return payload


class PackedRules:
    """`Rules` laid out once, for all the clients that ask for them after a change.

    Raises `LocalProtocolError` when they do not fit into a message.
    """

    def __init__(self, version: int, plain: Plain) -> None:
        encode(Rules(MAX_U64, version, plain))  # With the longest `seq` that any may have.
        self._rest: bytes = packb(version) + packb(plain)

    def to(self, seq: int) -> bytes:
        """The payload that answers the question `seq`, as `encode` would write it."""
        head: bytes = packb([_RULES, seq, None, None])
        return head[:-2] + self._rest


def decode(
    payload: bytes, *, limit: int = MAX_MESSAGE, maps: bool = True, arrays: int | None = None
) -> Message:
    """Turn the payload of one frame into a message.

    `limit` is the most bytes it may have and `arrays`, if given, the most arrays, which are counted
    in long messages only. Without `maps` it must not contain one. No message from a client to a
    node does; each map or array costs far more time than its single byte suggests.
    Raises `BadMessage`, and nothing else whatever the bytes: `WrongVersion` when a `Hello` or
    `Welcome` is of another version, its plain base for all other deviations.
    """
    if not payload:
        raise BadMessage(Cause.EMPTY, "a message of no bytes")
    if len(payload) > limit:
        raise _too_large(payload, limit)
    hook = _as_map if maps else _no_map
    count = None if arrays is None or len(payload) <= _SHORT else _count_to(arrays)
    try:
        fields: object = unpackb(
            payload, max_array_len=MAX_ITEMS, object_pairs_hook=hook, list_hook=count
        )
    except ValueError as error:
        raise BadMessage(Cause.GARBLED, "a message that is not one msgpack value") from error
    if type(fields) is not list or not fields:
        raise BadMessage(Cause.BAD_SHAPE, "a message that is not an array of fields")
    number = fields[0]
    if type(number) is not int or number not in _READERS:
        raise BadMessage(Cause.UNKNOWN_TYPE, "a message of no known type")
    kind, length, read = _READERS[number]
    if number <= _WELCOME:
        _check_version(fields)
        if number == _HELLO and len(payload) > MAX_HELLO:
            raise _too_large(payload, MAX_HELLO)
    if len(fields) != length:
        raise BadMessage(Cause.BAD_SHAPE, f"{kind.__name__} has {length} fields, not {len(fields)}")
    return read(fields)


def _too_large(payload: bytes, limit: int) -> BadMessage:
    return BadMessage(
        Cause.OVERSIZED, f"a message of {len(payload)} bytes; at most {limit} are allowed"
    )


def _as_map(pairs: list[tuple[object, object]]) -> dict[object, object]:
    """Build a map, which must not name a key twice: two readers could disagree on its value."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise BadMessage(Cause.GARBLED, "a map that names a key twice")
    return result


def _count_to(most: int) -> Callable[[list[object]], list[object]]:
    """Make a hook that passes so many arrays and refuses the next one."""
    left = most

    def count(array: list[object]) -> list[object]:
        nonlocal left
        left -= 1
        if left < 0:
            raise BadMessage(Cause.BAD_SHAPE, f"more than {most} arrays in a message")
        return array

    return count


def _no_map(pairs: list[tuple[object, object]]) -> None:
    """Refuse the first map, before any other is built."""
    raise BadMessage(Cause.BAD_SHAPE, "a map in a message that has none")


def _check_version(fields: list[object]) -> None:
    """Compare versions before anything else: only up to here do all versions look the same."""
    theirs = integer(fields[1] if len(fields) > 1 else None, "the protocol's version")
    if theirs != VERSION:
        raise WrongVersion(VERSION, theirs)


def _lay_out(message: Message) -> list[object]:  # noqa: PLR0911, PLR0912 - one line per message
    match message:
        case Request():
            return write_request(message)
        case Answer():
            return write_answer(message)
        case Hello():
            role = _ROLES.index(message.role)
            return [_HELLO, VERSION, role, message.name, message.credential, message.session]
        case Welcome():
            return [_WELCOME, VERSION, message.name, message.view, message.rules]
        case Refused():
            return [_REFUSED, message.seq, message.code, message.reason[:MAX_REASON]]
        case AskMembers():
            return [_ASK_MEMBERS, message.seq]
        case Members():
            rows = [_lay_out_row(row) for row in message.members]
            return [_MEMBERS, message.seq, message.view, rows]
        case AskRules():
            return [_ASK_RULES, message.seq]
        case Rules():
            return [_RULES, message.seq, message.version, message.plain]
        case AskStats():
            return [_ASK_STATS, message.seq]
        case Stats():
            return [_STATS, message.seq, message.counters]
        case Ping():
            return [_PING, message.seq]
        case Pong():
            return [_PONG, message.seq]
        case Goodbye():
            return [_GOODBYE, message.reason[:MAX_REASON]]
        case (
            SubscribeDenials()
            | DenialRevoked()
            | LeaseRequest()
            | LeaseGrant()
            | LeaseRecall()
            | SlotsFree()
        ):
            return lay_out_near(message)
        case Report() | AskThrottled() | Throttled():
            return lay_out_metrics(message)
        case _:
            return lay_out(message)


def _lay_out_row(row: MemberRow) -> list[object]:
    weight = float(row.weight)
    return [row.name, row.host, row.port, row.datacenter, row.zone, weight, row.state]


def _read_hello(fields: list[object]) -> Hello:
    _, _, role, name, credential, session = fields
    return Hello(
        _ROLES[integer(role, "Hello.role", 0, len(_ROLES) - 1)],
        text(name, "Hello.name"),
        binary(credential, "Hello.credential", MAX_CREDENTIAL),
        integer(session, "Hello.session"),
    )


def _read_welcome(fields: list[object]) -> Welcome:
    _, _, name, view, rules = fields
    return Welcome(
        text(name, "Welcome.name"),
        integer(view, "Welcome.view"),
        integer(rules, "Welcome.rules"),
    )


def _read_refused(fields: list[object]) -> Refused:
    _, seq, code, reason = fields
    return Refused(
        integer(seq, "Refused.seq"),
        integer(code, "Refused.code", 1, _MAX_CODE),
        text(reason, "Refused.reason", MAX_REASON),
    )


def _read_members(fields: list[object]) -> Members:
    _, seq, view, rows = fields
    members = [_read_row(row) for row in items(rows, "Members.members")]
    names = [row.name for row in members]
    if any(name >= following for name, following in pairwise(names)):
        raise bad_field("Members.members", "sorted by name, each name once")
    return Members(integer(seq, "Members.seq", 1), integer(view, "Members.view"), members)


def _read_row(wire: object) -> MemberRow:
    row = items(wire, "Members.members", _ROW_FIELDS)
    if len(row) != _ROW_FIELDS:
        raise bad_field("Members.members", f"rows of {_ROW_FIELDS} fields")
    name, host, port, datacenter, zone, weight, state = row
    if type(state) is not str or state not in _STATES:
        raise bad_field("Members.state", f"one of {', '.join(sorted(_STATES))}")
    return MemberRow(
        text(name, "Members.name"),
        text(host, "Members.host"),
        integer(port, "Members.port", 0, _MAX_PORT),
        text(datacenter, "Members.datacenter"),
        text(zone, "Members.zone"),
        real(weight, "Members.weight", MIN_WEIGHT, MAX_WEIGHT),
        state,
    )


def _read_rules(fields: list[object]) -> Rules:
    _, seq, version, rules = fields
    return Rules(
        integer(seq, "Rules.seq", 1),
        integer(version, "Rules.version"),
        plain(rules, "Rules.plain"),
    )


def _read_stats(fields: list[object]) -> Stats:
    _, seq, counters = fields
    if type(counters) is not dict:
        raise bad_field("Stats.counters", "a map of counts by name")
    return Stats(
        integer(seq, "Stats.seq", 1),
        {
            text(name, "Stats.counters"): integer(count, "Stats.counters")
            for name, count in counters.items()
        },
    )


def _read_goodbye(fields: list[object]) -> Goodbye:
    return Goodbye(text(fields[1], "Goodbye.reason", MAX_REASON))


_Numbered = TypeVar("_Numbered", AskMembers, AskRules, AskStats, Ping, Pong)


def _numbered(kind: type[_Numbered]) -> Callable[[list[object]], _Numbered]:
    """Make the reader of a message that is its sequence number and nothing else."""
    field = f"{kind.__name__}.seq"
    return lambda fields: kind(integer(fields[1], field, 1))


_READERS: dict[int, tuple[type[Message], int, Callable[[list[object]], Message]]] = {
    _HELLO: (Hello, 6, _read_hello),
    _WELCOME: (Welcome, 5, _read_welcome),
    _REFUSED: (Refused, 4, _read_refused),
    REQUEST: (Request, REQUEST_FIELDS, read_request),
    ANSWER: (Answer, ANSWER_FIELDS, read_answer),
    _ASK_MEMBERS: (AskMembers, 2, _numbered(AskMembers)),
    _MEMBERS: (Members, 4, _read_members),
    _ASK_RULES: (AskRules, 2, _numbered(AskRules)),
    _RULES: (Rules, 4, _read_rules),
    _ASK_STATS: (AskStats, 2, _numbered(AskStats)),
    _STATS: (Stats, 3, _read_stats),
    _PING: (Ping, 2, _numbered(Ping)),
    _PONG: (Pong, 2, _numbered(Pong)),
    _GOODBYE: (Goodbye, 2, _read_goodbye),
    **READERS,
    **NEAR_READERS,
    **METRIC_READERS,
}
"""By type number: what it is, how many fields its array has, and how they are read."""
