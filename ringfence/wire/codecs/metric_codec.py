"""Encoding and decoding of messages with decision reports and denied keys. Invalid messages raise
`BadMessage`.
"""

from collections.abc import Callable
from typing import TypeAlias

from ringfence.limiter.outcome import Code
from ringfence.wire.bounds import (
    MAX_KEY,
    MAX_REPORT_DECISIONS,
    MAX_REPORT_KEYS,
    MAX_REPORT_NAMED,
    MAX_THROTTLED,
    MIN_KEY,
)
from ringfence.wire.codecs.fields import bad_field, integer, items, text
from ringfence.wire.messages.metric_messages import AskThrottled, Report, Throttled

__all__ = ["METRIC_READERS", "MetricMessage", "encode_metric_message"]

MetricMessage: TypeAlias = Report | AskThrottled | Throttled
"""Messages of this module."""

_REPORT = 41
_ASK_THROTTLED = 42
_THROTTLED = 43
_CLIENT_SOURCES = frozenset({2, 3, 5, 6, 7})
"""Sources that a client may report: LOCAL, POLICY, CACHE, LEASE and SHED."""
_MAX_RESULT_CODE = max(Code).value
_COUNTS_PER_RULE = 3


def encode_metric_message(message: MetricMessage) -> list[object]:
    """Convert a message about metrics to the list of its fields."""
    match message:
        case Report(seq, client, number, named, keys, codes, sources, counts):
            return [_REPORT, seq, client, number, named, keys, codes, sources, counts]
        case AskThrottled(seq, count):
            return [_ASK_THROTTLED, seq, count]
        case Throttled(seq, denied, keys, counts, errors, rules, results, counting_s):
            return [_THROTTLED, seq, denied, keys, counts, errors, rules, results, counting_s]


def _read_report(fields: list[object]) -> Report:
    _, seq, client, number, named, keys, codes, sources, counts = fields
    read = _keys(keys, "Report.keys", MAX_REPORT_KEYS)
    rows = len(read)
    message = Report(
        integer(seq, "Report.seq", 1),
        integer(client, "Report.client"),
        integer(number, "Report.number", 1),
        integer(named, "Report.named", 0, min(rows, MAX_REPORT_NAMED)),
        read,
        _column(codes, "Report.codes", rows, most=_MAX_RESULT_CODE),
        _column(sources, "Report.sources", rows),
        _column(counts, "Report.counts", rows, least=1, most=MAX_REPORT_DECISIONS),
    )
    if not read:
        raise bad_field("Report.keys", "1 key or more")
    if not _CLIENT_SOURCES.issuperset(message.sources):
        raise bad_field("Report.sources", "LOCAL, POLICY, CACHE, LEASE or SHED")
    if any([len(key) != MIN_KEY for key in read[message.named :]]):
        raise bad_field("Report.keys", f"{MIN_KEY} bytes where only a rule is named")
    if sum(message.counts) > MAX_REPORT_DECISIONS:
        raise bad_field("Report.counts", f"at most {MAX_REPORT_DECISIONS} decisions in all")
    return message


def _read_throttled(fields: list[object]) -> Throttled:
    _, seq, denied, keys, counts, errors, rules, results, counting_s = fields
    read = _keys(keys, "Throttled.keys", MAX_THROTTLED)
    names = [text(name, "Throttled.rules") for name in items(rules, "Throttled.rules", 64)]
    return Throttled(
        integer(seq, "Throttled.seq", 1),
        integer(denied, "Throttled.denied"),
        read,
        _column(counts, "Throttled.counts", len(read)),
        _column(errors, "Throttled.errors", len(read)),
        names,
        _column(results, "Throttled.results", _COUNTS_PER_RULE * len(names)),
        integer(counting_s, "Throttled.counting_s"),
    )


def _column(
    wire: object, field: str, rows: int, *, least: int = 0, most: int = (1 << 64) - 1
) -> list[int]:
    column = [integer(each, field, least, most) for each in items(wire, field)]
    if len(column) != rows:
        raise bad_field(field, f"{rows} numbers")
    return column


def _keys(wire: object, field: str, most: int) -> list[bytes]:
    keys: list[bytes] = []
    for each in items(wire, field, most):
        if type(each) is not bytes or not MIN_KEY <= len(each) <= MAX_KEY:
            raise bad_field(field, f"byte strings of {MIN_KEY} to {MAX_KEY} bytes")
        keys.append(each)
    return keys


METRIC_READERS: dict[
    int, tuple[type[MetricMessage], int, Callable[[list[object]], MetricMessage]]
] = {
    _REPORT: (Report, 9, _read_report),
    _ASK_THROTTLED: (
        AskThrottled,
        3,
        lambda fields: AskThrottled(
            integer(fields[1], "AskThrottled.seq", 1),
            integer(fields[2], "AskThrottled.count", 1, MAX_THROTTLED),
        ),
    ),
    _THROTTLED: (Throttled, 9, _read_throttled),
}
"""Message class, number of fields and reader function of each message, by type number."""
