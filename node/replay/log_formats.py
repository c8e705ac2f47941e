"""Formats of the lines of access logs: Common, Combined, and tab-separated.

Decides the meaning of one line, or why it is malformed. The reader of a log decides its format.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Generic, NamedTuple, Protocol, TypeVar

from ringfence.limiter.limit import NS_PER_SECOND

__all__ = ["AccessFormat", "Entry", "Format", "TabbedFormat"]

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_END = int(datetime(2116, 1, 1, tzinfo=UTC).timestamp())
"""End of the times in seconds; the nanoseconds of a counter reach their end soon after it."""
_MAX_PIECES = 16_384
"""Bound of each cache of line parts; a full cache is cleared."""
_LONGEST_PIECE = 256
"""Maximum characters of a cached part."""

_NAMES = r"(?P<names>\S+ [^\[]*)"  # Client, identity, user with spaces; or a virtual host first.
_STAMP = (
    r"(?P<minute>\d\d/[A-Za-z]{3}/\d{4}:\d\d:\d\d):(?P<second>[0-5]\d|60) "
    r"(?P<zone>[+-][01]\d[0-5]\d)\] "
)
_REQUEST = r'(?P<request>[^"\\]*(?:\\.[^"\\]*)*)'
_STATUS = r" (?P<status>\d{3}|-)(?: |$)"
_STATUS_END = 5
"""Characters after the request that contain the status."""
_ACCESS = re.compile(rf'{_NAMES}\[{_STAMP}"{_REQUEST}"{_STATUS}', re.ASCII)
_ONLY_NAMES = re.compile(_NAMES, re.ASCII)
_ONLY_STAMP = re.compile(_STAMP, re.ASCII)
_ONLY_STATUS = re.compile(_STATUS, re.ASCII)
_TABBED = re.compile(
    r"(\d{1,10})(?:\.(\d{1,18}))?\t([^\t]+)\t([^\t]*)\t([^\t]*)\t([^\t]*)",
    re.ASCII,
)


class Entry(NamedTuple):
    """One request in an access log."""

    time_ns: int
    """Time in nanoseconds since the Unix epoch."""
    client: str
    """Address, host name or user name, as logged."""
    method: str
    """`-` when the request line holds none."""
    path: str
    """Without the query string, escapes as logged; `-` when the request line holds none."""
    status: str


class Format(Protocol):
    """Parser of one log format."""

    name: str
    expected: str
    """Error text for a line that has another form."""

    def parse(self, line: str) -> Entry | str:
        """Parse one line of an access log, given without its line end; return an error text when it
        is malformed."""


class TabbedFormat:
    """Parser of tab-separated lines: `unix_seconds[.frac] TAB client TAB method TAB path TAB
    status`."""

    name = "tab-separated trace"
    expected = "expected seconds, client, method, path and status, separated by tabs"

    def parse(self, line: str) -> Entry | str:
        """Parse a line, as `Format` says."""
        match = _TABBED.fullmatch(line)
        if match is None:
            return self.expected
        seconds, fraction, client, method, path, status = match.groups()
        if int(seconds) >= _END:
            return _no_time(seconds)
        time_ns = int(seconds) * NS_PER_SECOND
        if fraction:
            time_ns += int(fraction[:9].ljust(9, "0"))
        return Entry(time_ns, client, method, path.partition("?")[0], status)


_Meaning = TypeVar("_Meaning")
_new = tuple.__new__


class _Pieces(dict[str, _Meaning], Generic[_Meaning]):
    """Bounded cache of the parsed parts of log lines; each part is parsed at its first use.

    Raises `KeyError` for a part that cannot be parsed.
    """

    def __init__(self, meaning_of: Callable[[str], _Meaning | None]) -> None:
        super().__init__()
        self._meaning_of = meaning_of

    def __missing__(self, text: str) -> _Meaning:
        meaning = self._meaning_of(text)
        if meaning is None:
            raise KeyError(text)
        if len(text) <= _LONGEST_PIECE:
            if len(self) >= _MAX_PIECES:
                self.clear()
            self[text] = meaning
        return meaning


class AccessFormat:
    """Parser of Apache's Common log format, and of Combined, which appends fields.

    The regular expression `_ACCESS` defines a line. A log repeats its clients, seconds and
    requests, so parsed parts of lines are cached. A line with an unusual part is parsed by the
    whole expression.
    """

    name = "access log"
    expected = 'expected client, identity, user, [time], "request" and status'

    def __init__(self) -> None:
        self._minutes: _Pieces[int] = _Pieces(_start_of_minute)
        self._times: _Pieces[int] = _Pieces(self._time_of)
        self._clients: _Pieces[str] = _Pieces(
            lambda names: _client_of(names) if _ONLY_NAMES.fullmatch(names) else None
        )
        self._requests: _Pieces[tuple[str, str]] = _Pieces(
            lambda request: None if "\\" in request else _method_and_path(request)
        )
        self._statuses: _Pieces[str] = _Pieces(
            lambda tail: match["status"] if (match := _ONLY_STATUS.match(tail)) else None
        )

    def parse(self, line: str) -> Entry | str:
        """Parse a line, as `Format` says, by its parts."""
        head, _, rest = line.partition('"')
        names, _, stamp = head.partition("[")
        request, _, tail = rest.partition('"')
        try:
            method, path = self._requests[request]
            status = self._statuses[tail[:_STATUS_END]]
            # This takes half the time of `Entry(...)`.
            return _new(Entry, (self._times[stamp], self._clients[names], method, path, status))
        except KeyError:
            return self.parse_whole(line)

    def parse_whole(self, line: str) -> Entry | str:
        """Parse a line by the whole regular expression, without the cache."""
        match = _ACCESS.match(line)
        if match is None:
            return self.expected
        time_ns = self._time_of(line[match.start("minute") : match.start("request") - 1])
        if time_ns is None:
            return _no_time(f"{match['minute']}:{match['second']} {match['zone']}")
        method, path = _method_and_path(match["request"])
        return Entry(time_ns, _client_of(match["names"]), method, path, match["status"])

    def _time_of(self, stamp: str) -> int | None:
        match = _ONLY_STAMP.fullmatch(stamp)
        if match is None:
            return None
        minute, second, zone = match.groups()
        try:
            return (self._minutes[minute + zone] + int(second)) * NS_PER_SECOND
        except KeyError:
            return None


def _no_time(text: str) -> str:
    """Return the problem of a line with an impossible time, or one outside the readable years."""
    return f"time must be a valid time from 1970 to 2115, got {text}"


def _start_of_minute(text: str) -> int | None:
    """Convert `17/May/2015:10:05+0200` to seconds since the epoch; None for an impossible time."""
    day, month, year = text[:2], text[3:6].capitalize(), text[7:11]
    hours, minutes, zone = text[12:14], text[15:17], text[17:]
    try:
        local = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hours), int(minutes), tzinfo=UTC
        )
    except ValueError:
        return None
    offset = int(zone[1:3]) * 3600 + int(zone[3:]) * 60
    start = int(local.timestamp()) - (offset if zone[0] == "+" else -offset)
    return start if 0 <= start < _END else None


def _client_of(names: str) -> str:
    """Return the client from the part of a line before the time.

    That part contains client, identity and user, or first a virtual host. The first word is a
    virtual host when the second word is an address, or a name with a dot that identity `-` and a
    user follow. Clients control none of the first two words, so no client can pose as another.
    """
    first, _, others = names.partition(" ")
    second, _, others = others.partition(" ")
    if first.endswith(","):  # A list of forwarded addresses.
        return first
    if _is_address(second) or ("." in second and others.startswith("- ") and len(others) > 2):
        return second
    return first


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _method_and_path(request: str) -> tuple[str, str]:
    """Split a request line into method and path; both are `-` when it is not a request."""
    method, space, rest = request.partition(" ")
    if not space:
        return "-", "-"
    target, _, version = rest.rpartition(" ")
    asked = target if version.startswith("HTTP/") else rest
    return method, asked.partition("?")[0]
