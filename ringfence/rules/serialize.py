"""Conversion of rules to lists and numbers that can be sent to clients, and back.

Every node of a tree is one row with its whole path, so the nesting does not depend on the depth of
the tree. Rule ids are not sent; the receiver computes them again.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from ringfence.errors import ConfigError, RemoteProtocolError
from ringfence.limiter.limit import Algorithm, Calendar, Limit
from ringfence.rules.descriptor_tree import Domain, Open, Row
from ringfence.rules.glob import is_pattern
from ringfence.rules.keys import Path, rule_id
from ringfence.rules.model import OnFailure, Rule

__all__ = ["MAX_METADATA_DEPTH", "MAX_PATH", "Plain", "domains_from_plain", "to_plain"]

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""Data that a message can contain. Rules do not use bytes."""

MAX_METADATA_DEPTH = 32
MAX_PATH = 64
"""Maximum number of levels of a descriptor tree."""

_Word = TypeVar("_Word", Algorithm, Calendar, OnFailure)


def to_plain(version: int, domains: Sequence[Domain]) -> Plain:
    """Convert rules to nested lists: `[version, [[domain, on_failure, [row, ...]], ...]]`."""
    written: list[Plain] = [
        [domain.name, domain.on_failure.value, [_row_to_plain(row) for row in domain.rows]]
        for domain in domains
    ]
    return [version, written]


def domains_from_plain(plain: Plain) -> tuple[int, tuple[Domain, ...]]:
    """Convert the nested lists from `to_plain` back to domains.

    Raises `RemoteProtocolError` when the structure is invalid, and `InvalidLimit` when the numbers
    of a limit contradict each other.
    """
    version, domains = _fields(plain, 2, "rules")
    read = tuple(_domain(each) for each in _list(domains, "domains"))
    return _int(version, "version", least=0), read


def _row_to_plain(row: Row) -> Plain:
    path: list[Plain] = [[key, value] for key, value in row.path]
    if isinstance(row, Open):
        return [path, None]
    fields: list[Plain] = [
        None if row.limit is None else _limit_to_plain(row.limit),
        row.unit,
        row.name,
        list(row.replaces),
        row.shadow,
        row.quota,
        row.on_failure.value,
        row.scope,
        row.home,
        _metadata_to_plain(row.metadata, 0),
        list(row.details),
    ]
    return [path, fields]


def _limit_to_plain(limit: Limit) -> Plain:
    return [
        limit.amount,
        limit.period_ns,
        limit.algorithm.value,
        limit.burst,
        limit.queue,
        limit.slots,
        None if limit.calendar is None else limit.calendar.value,
        limit.timezone,
        limit.soft_permille,
        limit.first_hit,
    ]


def _metadata_to_plain(value: object, depth: int) -> Plain:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth >= MAX_METADATA_DEPTH:
        raise ConfigError(f"metadata must be nested at most {MAX_METADATA_DEPTH} deep; flatten it")
    if isinstance(value, Mapping):
        return {str(key): _metadata_to_plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_metadata_to_plain(each, depth + 1) for each in value]
    raise ConfigError(f"metadata must be text, numbers, lists and maps, got {type(value).__name__}")


def _domain(plain: Plain) -> Domain:
    name, on_failure, rows = _fields(plain, 3, "domain")
    domain = _text(name, "domain name")
    if not domain:
        raise RemoteProtocolError("rules: a domain without a name")
    read = tuple(_row(domain, row) for row in _list(rows, "rows"))
    return Domain(domain, read, _word(OnFailure, on_failure, "on_failure"))


def _row(domain: str, plain: Plain) -> Row:
    steps, fields = _fields(plain, 2, "row")
    path = tuple(_step(step) for step in _list(steps, "path"))
    if not 0 < len(path) <= MAX_PATH:
        raise RemoteProtocolError(f"rules: a path of {len(path)} steps, not 1 to {MAX_PATH}")
    return Open(path) if fields is None else _rule(domain, path, fields)


def _step(plain: Plain) -> tuple[str, str | None]:
    key, value = _fields(plain, 2, "path step")
    name = _text(key, "key")
    if not name:
        raise RemoteProtocolError("rules: a path step without a key")
    return name, None if value is None else _text(value, "value")


def _rule(domain: str, path: Path, plain: Plain) -> Rule:
    (limit, unit, name, replaces, shadow, quota, on_failure, scope, home, metadata, details) = (
        _fields(plain, 11, "rule")
    )
    checked_scope = _choice(scope, "scope", ("datacenter", "global", "split", "home"))
    home_dc = _text(home, "home")
    if (checked_scope == "home") != bool(home_dc):
        raise RemoteProtocolError(
            f"rules: home {home_dc[:40]!r} does not fit scope {checked_scope}"
        )
    return Rule(
        id=rule_id(domain, path),
        domain=domain,
        path=path,
        limit=None if limit is None else _limit(limit),
        unit=_text(unit, "unit"),
        name=_text(name, "name"),
        replaces=tuple(_text(each, "replaces") for each in _list(replaces, "replaces")),
        shadow=_bool(shadow, "shadow"),
        quota=_bool(quota, "quota"),
        on_failure=_word(OnFailure, on_failure, "on_failure"),
        scope=checked_scope,
        home=home_dc,
        metadata=_metadata_map(metadata, 0),
        details=_details(details, path),
    )


def _details(plain: Plain, path: Path) -> tuple[str, ...]:
    allowed = ("", "share", "detailed", "value")
    details = tuple(_choice(each, "details", allowed) for each in _list(plain, "details"))
    if details and len(details) != len(path):
        raise RemoteProtocolError(f"rules: {len(details)} details for a path of {len(path)}")
    for detail, (_, value) in zip(details, path, strict=False):
        if detail == "share" and (value is None or not is_pattern(value)):
            raise RemoteProtocolError("rules: a shared threshold without a pattern")
    return details


def _limit(plain: Plain) -> Limit:
    (amount, period, algorithm, burst, queue, slots, calendar, timezone, soft, first_hit) = _fields(
        plain, 10, "limit"
    )
    return Limit.of_ns(
        amount=_int(amount, "amount", least=0),
        period_ns=_int(period, "period", least=1),
        algorithm=_word(Algorithm, algorithm, "algorithm"),
        burst=None if burst is None else _int(burst, "burst", least=0),
        queue=_bool(queue, "queue"),
        slots=_int(slots, "slots", least=1),
        calendar=None if calendar is None else _word(Calendar, calendar, "calendar"),
        timezone=_text(timezone, "timezone"),
        soft_permille=_int(soft, "soft", least=0),
        first_hit=_bool(first_hit, "first_hit"),
    )


def _metadata_map(plain: Plain, depth: int) -> dict[str, Plain]:
    if not isinstance(plain, dict):
        raise _invalid("metadata", "a map", plain)
    return {_text(key, "metadata key"): _metadata(each, depth + 1) for key, each in plain.items()}


def _metadata(plain: Plain, depth: int) -> Plain:
    if depth > MAX_METADATA_DEPTH:
        raise RemoteProtocolError(f"rules: metadata nested more than {MAX_METADATA_DEPTH} deep")
    match plain:
        case list():
            return [_metadata(each, depth + 1) for each in plain]
        case dict():
            return _metadata_map(plain, depth)
        case bytes():
            raise _invalid("metadata", "text, numbers, lists and maps", plain)
        case _:
            return plain


def _fields(plain: Plain, count: int, what: str) -> list[Plain]:
    fields = _list(plain, what)
    if len(fields) != count:
        raise RemoteProtocolError(f"rules: {what} has {len(fields)} fields, not {count}")
    return fields


def _list(plain: Plain, what: str) -> list[Plain]:
    if not isinstance(plain, list):
        raise _invalid(what, "a list", plain)
    return plain


def _int(plain: Plain, what: str, *, least: int) -> int:
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise _invalid(what, "a whole number", plain)
    if not least <= plain < 2**63:
        raise RemoteProtocolError(f"rules: {what} is {plain}, out of range")
    return plain


def _bool(plain: Plain, what: str) -> bool:
    if not isinstance(plain, bool):
        raise _invalid(what, "true or false", plain)
    return plain


def _text(plain: Plain, what: str) -> str:
    if not isinstance(plain, str):
        raise _invalid(what, "text", plain)
    return plain


def _choice(plain: Plain, what: str, allowed: tuple[str, ...]) -> str:
    text = _text(plain, what)
    if text not in allowed:
        raise RemoteProtocolError(f"rules: unknown {what} {text[:40]!r}")
    return text


def _word(kind: type[_Word], plain: Plain, what: str) -> _Word:
    try:
        return kind(_text(plain, what))
    except ValueError:
        raise RemoteProtocolError(f"rules: unknown {what} {str(plain)[:40]!r}") from None


def _invalid(what: str, wanted: str, plain: Plain) -> RemoteProtocolError:
    return RemoteProtocolError(f"rules: {what} must be {wanted}, not {type(plain).__name__}")
