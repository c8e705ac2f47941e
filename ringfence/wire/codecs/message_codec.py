"""Encoding and decoding of messages: one msgpack array each, with the type number first.

Rejects every message that deviates from its format. `framing` separates messages on the stream, and
the receiver decides whether the sender may send them.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from msgpack import packb, unpackb

from hashring.member import MAX_WEIGHT, MIN_WEIGHT
from ringfence.errors import LocalProtocolError
from ringfence.wire.bounds import MAX_CREDENTIAL, MAX_HELLO, MAX_ITEMS, MAX_REASON, MAX_U64
from ringfence.wire.codecs.fields import bad_field, binary, integer, items, plain, real, text
from ringfence.wire.codecs.lease_codec import LEASE_READERS, encode_lease_message
from ringfence.wire.codecs.metric_codec import METRIC_READERS, encode_metric_message
from ringfence.wire.codecs.peer_codec import (
    PEER_READERS,
    VALIDATED_WHILE_ENCODED,
    encode_peer_message,
)
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
"""Version of the wire protocol, which `Hello` and `Welcome` contain."""

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
_SMALL_MESSAGE = 4096
"""Message size up to which arrays are not counted: decoding takes less than 2 ms in any case."""
_MAX_CODE = 65_535
_ALREADY_VALIDATED = (REQUEST, ANSWER, *VALIDATED_WHILE_ENCODED)


def encode(message: Message) -> bytes:
    """Encode a message as the payload of one frame.

    Raises `LocalProtocolError` for a message that `decode` would refuse: a value is out of bounds,
    columns differ in length, or the payload exceeds `MAX_MESSAGE`. Frequent messages are validated
    while they are encoded, all others by decoding the result.
    """
    try:
        fields = _to_fields(message)
        payload: bytes = packb(fields)
        if fields[0] not in _ALREADY_VALIDATED:
            decode(payload)
    except BadMessage as error:
        raise LocalProtocolError(f"cannot send: {error.reason}") from error
    except (TypeError, ValueError, OverflowError) as error:
        name = type(message).__name__
        raise LocalProtocolError(
            f"cannot send: {name} must contain only types of msgpack: {error}"
        ) from error
    if len(payload) > MAX_MESSAGE:
        raise LocalProtocolError(f"cannot send: {_too_large(payload, MAX_MESSAGE).reason}")
    return payload


class PackedRules:
    """Rules that were encoded once, for all clients that request them after a change.

    Raises `LocalProtocolError` when they do not fit into a message.
    """

    def __init__(self, version: int, plain: Plain) -> None:
        encode(Rules(MAX_U64, version, plain))  # Checks the size with the longest `seq`.
        self._rest: bytes = packb(version) + packb(plain)

    def to(self, seq: int) -> bytes:
        """Return the message payload that answers the request number `seq` with the encoded
        rules."""
        head: bytes = packb([_RULES, seq, None, None])
        return head[:-2] + self._rest


def decode(
    payload: bytes, *, limit: int = MAX_MESSAGE, maps: bool = True, arrays: int | None = None
) -> Message:
    """Decode a message from the payload of one frame.

    `limit` is the maximum size in bytes. `arrays`, if given, is the maximum number of arrays, which
    only long messages enforce. Without `maps`, a map is refused: no client sends one to a node, and
    each map or array costs far more time than its single byte suggests.
    Raises `BadMessage` only, whatever the bytes, and `WrongVersion` for another protocol version.
    """
    if not payload:
        raise BadMessage(Cause.EMPTY, "a message must not be empty")
    if len(payload) > limit:
        raise _too_large(payload, limit)
    hook = _unique_map if maps else _refuse_map
    count = None if arrays is None or len(payload) <= _SMALL_MESSAGE else _array_counter(arrays)
    try:
        fields: object = unpackb(
            payload, max_array_len=MAX_ITEMS, object_pairs_hook=hook, list_hook=count
        )
    except ValueError as error:
        raise BadMessage(Cause.GARBLED, "a message must be exactly one msgpack value") from error
    if type(fields) is not list or not fields:
        raise BadMessage(Cause.BAD_SHAPE, "a message must be an array of fields")
    number = fields[0]
    if type(number) is not int or number not in _READERS:
        raise BadMessage(Cause.UNKNOWN_TYPE, "the type of a message must be a known number")
    kind, length, read = _READERS[number]
    if number <= _WELCOME:
        _check_version(fields)
        if number == _HELLO and len(payload) > MAX_HELLO:
            raise _too_large(payload, MAX_HELLO)
    if len(fields) != length:
        raise BadMessage(
            Cause.BAD_SHAPE, f"{kind.__name__} must have {length} fields, got {len(fields)}"
        )
    return read(fields)


def _too_large(payload: bytes, limit: int) -> BadMessage:
    return BadMessage(
        Cause.OVERSIZED, f"a message must have at most {limit} bytes, got {len(payload)}"
    )


def _unique_map(pairs: list[tuple[object, object]]) -> dict[object, object]:
    """Create a map; refuse repeated keys, because two decoders could choose different values."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise BadMessage(Cause.GARBLED, "a map must contain each key once")
    return result


def _array_counter(most: int) -> Callable[[list[object]], list[object]]:
    """Return a callback for msgpack that accepts `most` arrays and refuses the next one."""
    left = most

    def count(array: list[object]) -> list[object]:
        nonlocal left
        left -= 1
        if left < 0:
            raise BadMessage(Cause.BAD_SHAPE, f"a message must contain at most {most} arrays")
        return array

    return count


def _refuse_map(pairs: list[tuple[object, object]]) -> None:
    """Refuse a message at its first map, before msgpack decodes another one."""
    raise BadMessage(Cause.BAD_SHAPE, "a message to a node must not contain maps")


def _check_version(fields: list[object]) -> None:
    """Check the protocol version first, because later fields may differ between versions."""
    theirs = integer(fields[1] if len(fields) > 1 else None, "the protocol's version")
    if theirs != VERSION:
        raise WrongVersion(VERSION, theirs)


def _to_fields(message: Message) -> list[object]:  # noqa: PLR0911, PLR0912 - one line per message
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
            rows = [_member_fields(row) for row in message.members]
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
            return encode_lease_message(message)
        case Report() | AskThrottled() | Throttled():
            return encode_metric_message(message)
        case _:
            return encode_peer_message(message)


def _member_fields(row: MemberRow) -> list[object]:
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


_SeqOnly = TypeVar("_SeqOnly", AskMembers, AskRules, AskStats, Ping, Pong)


def _seq_reader(kind: type[_SeqOnly]) -> Callable[[list[object]], _SeqOnly]:
    """Return the decoder of a message whose only field is `seq`."""
    field = f"{kind.__name__}.seq"
    return lambda fields: kind(integer(fields[1], field, 1))


_READERS: dict[int, tuple[type[Message], int, Callable[[list[object]], Message]]] = {
    _HELLO: (Hello, 6, _read_hello),
    _WELCOME: (Welcome, 5, _read_welcome),
    _REFUSED: (Refused, 4, _read_refused),
    REQUEST: (Request, REQUEST_FIELDS, read_request),
    ANSWER: (Answer, ANSWER_FIELDS, read_answer),
    _ASK_MEMBERS: (AskMembers, 2, _seq_reader(AskMembers)),
    _MEMBERS: (Members, 4, _read_members),
    _ASK_RULES: (AskRules, 2, _seq_reader(AskRules)),
    _RULES: (Rules, 4, _read_rules),
    _ASK_STATS: (AskStats, 2, _seq_reader(AskStats)),
    _STATS: (Stats, 3, _read_stats),
    _PING: (Ping, 2, _seq_reader(Ping)),
    _PONG: (Pong, 2, _seq_reader(Pong)),
    _GOODBYE: (Goodbye, 2, _read_goodbye),
    **PEER_READERS,
    **LEASE_READERS,
    **METRIC_READERS,
}
"""Message class, number of fields and reader function of each message, by type number."""
