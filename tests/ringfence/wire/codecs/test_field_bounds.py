"""Bounds of the fields of messages, as numbers: a change of one breaks older releases."""

from collections.abc import Callable
from copy import deepcopy
from enum import IntEnum
from typing import Any

import pytest
from msgpack import packb

from hashring import SHARDS
from ringfence.limiter import Code
from ringfence.wire.codecs.message_codec import decode, encode
from ringfence.wire.errors import BadMessage, ErrorCode
from ringfence.wire.messages.request_columns import Op, Source

U64 = (1 << 64) - 1
COST = 1 << 53
KEY, RULE = b"a counter", b"ruleidnt"
ROW = bytes((0, len(KEY), *KEY, 0))
LIMIT = [100, 60_000_000_000]
COUNTS = [ROW, 1, [LIMIT], []]
GROUP = [[7], [1], 2, 1, "", "", "", 0, False, [], []]
DECIDED = [1, 1, 0, KEY, 1, 0, [0] * 8]
VALID: dict[str, list[object]] = {
    "Hello": [1, 1, 0, "n1", b"", 1],
    "Welcome": [2, 1, "n1", 1, 1],
    "Refused": [3, 1, 1, ""],
    "Request": [4, 1, 0, 1, 250, 0, False, [KEY], 1, *[None] * 6],
    "Answer": [5, 1, 1, 1, 1, *[0] * 8, None],
    "AskMembers": [6, 1],
    "Members": [7, 1, 1, [["n1", "h", 1, "dc", "z", 1.0, "alive"]]],
    "AskRules": [8, 1],
    "Rules": [9, 1, 1, {}],
    "AskStats": [10, 1],
    "Stats": [11, 1, {"checks": 1}],
    "Ping": [12, 1],
    "Pong": [13, 1],
    "Goodbye": [14, ""],
    "Exchange": [15, 1, b""],
    "Exchanged": [16, 1, b""],
    "Pull": [17, 1, [7], 0, 0, 0],
    "Pulled": [18, 1, [GROUP], COUNTS, [], [DECIDED]],
    "Copy": [19, 1, COUNTS, [], []],
    "TransferOffer": [20, 1, [7]],
    "WindowCounts": [21, 1, "eu", [KEY], [[1, 1]]],
    "Digest": [22, 1, "eu", [7], [1]],
    "DigestMismatch": [23, 1, [7]],
    "AskPeers": [24, 1],
    "Peers": [25, 1, []],
    "AskLeave": [26, 1],
    "Done": [27, 1],
    "TransferAck": [28, 1, [7], 1],
    "RecoverCounts": [29, 1, [7]],
    "RecoverCountsReply": [30, 1, [7], [KEY], [[1, 1]]],
    "SubscribeDenials": [31, 1],
    "DenialRevoked": [32, [KEY]],
    "LeaseRequest": [33, 1, KEY, 1, [1], [1]],
    "LeaseGrant": [34, 1, 1, 1, 1, 1, 1, 1],
    "LeaseRecall": [35, [KEY]],
    "AskTakenOver": [36, 1],
    "TakenOver": [37, 1, [7]],
    "SlotsFree": [38, [1]],
    "Report": [41, 1, 1, 1, 0, [RULE], [2], [5], [1]],
    "AskThrottled": [42, 1, 1],
    "Throttled": [43, 1, 1, [KEY], [1], [0], ["api"], [0, 0, 0], 9],
}
FROM_ONE = [
    *("AskMembers", "Members", "AskRules", "Rules", "AskStats", "Stats", "Ping", "Pong"),
    *("Exchange", "Exchanged", "Pull", "Pulled", "Copy", "TransferOffer", "WindowCounts"),
    *("Digest", "DigestMismatch", "AskPeers", "Peers", "AskLeave", "Done", "TransferAck"),
    *("RecoverCounts", "RecoverCountsReply", "SubscribeDenials", "LeaseRequest", "LeaseGrant"),
    *("AskTakenOver", "TakenOver", "Report", "AskThrottled", "Throttled", "Request", "Answer"),
]
"""Messages whose first field is a sequence number from 1."""
INTEGERS: list[tuple[str, tuple[int, ...], int, int]] = [
    *((name, (1,), 1, U64) for name in FROM_ONE),
    ("Hello", (2,), 0, 1),
    ("Hello", (5,), 0, U64),
    ("Welcome", (3,), 0, U64),
    ("Welcome", (4,), 0, U64),
    ("Refused", (1,), 0, U64),
    ("Refused", (2,), 1, 65_535),
    ("Request", (3,), 0, U64),
    ("Request", (4,), 1, 60_000),
    ("Request", (5,), 0, 2),
    ("Answer", (2,), 0, U64),
    ("Answer", (3,), 0, U64),
    ("Members", (2,), 0, U64),
    ("Members", (3, 0, 2), 0, 65_535),
    ("Rules", (2,), 0, U64),
    ("Pull", (2, 0), 0, 16_383),
    ("Pull", (3,), 0, 65_535),
    ("Pull", (4,), 0, U64),
    ("Pull", (5,), 0, 2),
    ("Pulled", (2, 0, 2), 0, 2),
    ("Pulled", (2, 0, 3), 1, 65_536),
    ("Pulled", (2, 0, 7), 0, U64),
    ("Pulled", (5, 0, 0), 0, U64),
    ("Pulled", (5, 0, 1), 0, U64),
    ("Pulled", (5, 0, 2), 0, 4095),
    ("Pulled", (5, 0, 4), 0, COST),
    ("Pulled", (5, 0, 5), 0, U64),
    *(("Pulled", (5, 0, 6, column), 0, U64) for column in range(1, 7)),
    ("WindowCounts", (4, 0, 1), 0, U64),
    ("Digest", (4, 0), 0, U64),
    ("TransferAck", (3,), 0, U64),
    ("RecoverCountsReply", (4, 0, 0), 0, U64),
    ("LeaseRequest", (3,), 0, COST),
    ("LeaseRequest", (4, 0), 1, U64),
    ("LeaseRequest", (5, 0), 0, COST),
    ("LeaseGrant", (3,), 1, COST),
    *(("LeaseGrant", (field,), 0, U64) for field in (4, 5, 6, 7)),
    ("SlotsFree", (1, 0), 1, U64),
    ("Report", (2,), 0, U64),
    ("Report", (3,), 1, U64),
    ("Report", (6, 0), 0, 6),
    ("Report", (8, 0), 1, 1 << 24),
    ("AskThrottled", (2,), 1, 256),
    ("Throttled", (2,), 0, U64),
    ("Throttled", (4, 0), 0, U64),
    ("Throttled", (5, 0), 0, U64),
    ("Throttled", (7, 2), 0, U64),
    ("Throttled", (8,), 0, U64),
]
LENGTHS: list[tuple[str, tuple[object, ...], object, int, int]] = [
    ("Hello", (3,), "n", 0, 255),
    ("Hello", (4,), b"c", 0, 64),
    ("Welcome", (2,), "n", 0, 255),
    ("Refused", (3,), "r", 0, 500),
    ("Members", (3, 0, 0), "n", 0, 255),
    ("Goodbye", (1,), "r", 0, 500),
    ("Exchange", (2,), b"p", 0, 512 * 1024),
    ("Exchanged", (2,), b"p", 0, 512 * 1024),
    ("Pulled", (2, 0, 9), [1], 0, 32),
    ("Pulled", (2, 0, 10), [1], 0, 32),
    ("Pulled", (5,), [DECIDED], 0, 8192),
    ("Pulled", (5, 0, 3), b"k", 8, 128),
    ("Copy", (2, 3, 0), {}, 0, 256),
    ("Copy", (2, 3, 0, "eu"), [1, 1], 0, 8192),
    ("Copy", (3, 0), [1], 0, 32),
    ("WindowCounts", (2,), "w", 0, 255),
    ("WindowCounts", (3, 0), b"k", 8, 128),
    ("WindowCounts", (4, 0), [1, 1], 0, 8192),
    ("DenialRevoked", (1,), [KEY], 0, 4096),
    ("DenialRevoked", (1, 0), b"k", 8, 128),
    ("LeaseRequest", (2,), b"k", 8, 128),
    ("LeaseRecall", (1,), [KEY], 0, 4096),
    ("SlotsFree", (1,), [1], 1, 4096),
    ("Report", (5, 0), b"r", 8, 8),
    ("Throttled", (3, 0), b"k", 8, 128),
    ("Request", (7, 0), b"k", 8, 128),
]


def changed(name: str, path: tuple[object, ...], value: object) -> bytes:
    """Return a valid message with one changed field."""
    fields: Any = deepcopy(VALID[name])
    if name == "Copy" and path[:2] == (2, 3):
        fields[2][3] = [{"eu": []}]
    elif name == "Copy" and path[0] == 3:
        fields[3] = [[]]
    at = fields
    for index in path[:-1]:
        at = at[index]
    at[path[-1]] = value
    return packb(fields)


def repeated(item: Any, count: int) -> object:
    if item == {}:
        return {f"dc{number}": [] for number in range(count)}
    return item * count


@pytest.mark.parametrize("name", VALID)
def test_each_message_of_these_tests_is_valid(name: str) -> None:
    message = decode(packb(VALID[name]))

    assert type(message).__name__ == name
    assert encode(message)


@pytest.mark.parametrize(("name", "path", "least", "most"), INTEGERS)
def test_an_integer_field_has_a_least_and_a_greatest_value(
    name: str, path: tuple[int, ...], least: int, most: int
) -> None:
    for value in (least, most):
        assert encode(decode(changed(name, path, value)))
    for value in {least - 1, min(most + 1, U64)} - {most}:
        with pytest.raises(BadMessage, match=f"{name}\\."):
            decode(changed(name, path, value))


@pytest.mark.parametrize(("name", "path", "item", "least", "most"), LENGTHS)
def test_a_text_or_array_has_a_least_and_a_greatest_length(
    name: str, path: tuple[object, ...], item: object, least: int, most: int
) -> None:
    for length in (least, most):
        assert encode(decode(changed(name, path, repeated(item, length))))
    for length in {max(least - 1, 0), most + 1} - {least}:
        with pytest.raises(BadMessage, match=f"{name}\\."):
            decode(changed(name, path, repeated(item, length)))


@pytest.mark.parametrize(
    ("most", "fields"),
    [
        (4096, lambda count: [4, 1, 0, 1, 250, 0, False, [KEY] * count, 1, *[None] * 6]),
        (16, lambda count: [33, 1, KEY, 1, [1] * count, [1] * count]),
        (512, lambda count: [41, 1, 1, 1, 0, *([each] * count for each in (RULE, 2, 5, 1))]),
        (128, lambda count: [41, 1, 1, 1, count, *([each] * count for each in (KEY, 2, 5, 1))]),
        (256, lambda count: [43, 1, 1, *([each] * count for each in (KEY, 1, 0)), [], [], 9]),
        (64, lambda count: [43, 1, 1, [], [], [], ["api"] * count, [0] * 3 * count, 9]),
        (8192, lambda count: [21, 1, "eu", [KEY] * count, [[]] * count]),
        (8192, lambda count: [30, 1, [7], [KEY] * count, [[]] * count]),
        (
            8192,
            lambda count: [
                *(19, 1, [ROW + bytes((len(KEY), 0, 0)) * (count - 1), count, [LIMIT], []]),
                *([], []),
            ],
        ),
    ],
)
def test_columns_of_one_length_have_a_greatest_length(
    most: int, fields: Callable[[int], list[object]]
) -> None:
    assert encode(decode(packb(fields(most))))
    with pytest.raises(BadMessage):
        decode(packb(fields(most + 1)))


def test_a_message_can_name_all_shards() -> None:
    assert decode(packb([37, 1, [*range(SHARDS)]])).shards == [*range(16_384)]
    with pytest.raises(BadMessage, match=r"TakenOver\.shards"):
        decode(packb([37, 1, [*range(1, 16_385)]]))


@pytest.mark.parametrize("source", range(8))
def test_a_report_names_only_sources_where_a_client_decides(source: int) -> None:
    payload = packb([41, 1, 1, 1, 0, [RULE], [2], [source], [1]])

    if source in (2, 3, 5, 6, 7):
        assert decode(payload).sources == [source]
    else:
        with pytest.raises(BadMessage, match=r"Report\.sources"):
            decode(payload)


def test_a_lease_has_units_and_no_lease_has_none() -> None:
    assert decode(packb([34, 1, 0, 0, 1, 1, 1, 1])).units == 0
    for lease, units in ((0, 1), (1, 0)):
        with pytest.raises(BadMessage, match=r"LeaseGrant\.units"):
            decode(packb([34, 1, lease, units, 1, 1, 1, 1]))


@pytest.mark.parametrize("name", sorted(VALID.keys() - {"Request", "Answer"}))
def test_a_message_without_checks_cannot_be_changed(name: str) -> None:
    message = decode(packb(VALID[name]))

    for field in message.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(message, field, getattr(message, field))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Op, "CHECK REFUND RESET CHARGE RENEW"),
        (Source, "OWNER STANDBY LOCAL POLICY NO_RULE CACHE LEASE SHED"),
        (Code, "ALLOWED OVER_SOFT DENIED NEVER UNCHARGED UNKNOWN_RULE OVERDRAWN"),
        (
            ErrorCode,
            "OK BAD_MESSAGE WRONG_VERSION BAD_CREDENTIAL NOT_PERMITTED TOO_LARGE OVERLOADED "
            "DRAINING INTERNAL HELLO_EXPECTED HELLO_TIMEOUT NOT_HERE TOO_LATE IDLE",
        ),
    ],
)
def test_numbers_on_the_wire_never_change(kind: type[IntEnum], names: str) -> None:
    assert [each.name for each in kind] == names.split()
    assert [each.value for each in kind] == list(range(len(kind)))
