"""Reader of access logs in Common, Combined or tab-separated format.

Decides the meaning of a line, and which lines are malformed and why. The replay decides which
checks an entry causes, and when.
"""

import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND

__all__ = ["Entry", "LogReader", "Problem", "read_log", "sorted_by_time"]

MAX_LINE = 65_536
"""Maximum bytes of a line; longer lines are skipped without being held in memory."""
MAX_PROBLEMS = 5
"""Number of malformed lines that are reported; all are counted."""
MAX_HEAD = 100
"""Maximum number of lines before the first valid one; else the format is unknown."""

_STDIN = 0
_GZIP_MAGIC = b"\x1f\x8b"
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


class Problem(Struct, frozen=True):
    """Line of a log that could not be parsed, with the reason."""

    line: int
    """Counted from 1."""
    why: str


class _Unreadable(Struct, frozen=True):
    """Placeholder for a line that could not be read."""

    why: str


_TOO_LONG = _Unreadable(f"longer than {MAX_LINE} bytes")
_Line: TypeAlias = str | _Unreadable


class _Format(Protocol):
    """Parser of one log format."""

    name: str

    def parse(self, line: str) -> Entry | str:
        """Parse one line of an access log, given without its line end; return an error text when it
        is malformed."""


class LogReader(Iterator[Entry]):
    """Entries of one log in file order, read on demand.

    Every line becomes an entry or counts as malformed. The counts are final when the entries end.
    """

    def __init__(self, name: str, source: io.BufferedReader) -> None:
        self._name = name
        self._source = source
        self._size = _size_of(source)
        self._blocks = _blocks_of(source)
        self._line = 0
        self._malformed = 0
        self._problems: list[Problem] = []
        head, self._format = self._detect()
        self._rest = chain([head], self._blocks)
        self._entries = self._one_by_one()

    def __next__(self) -> Entry:
        return next(self._entries)

    def batches(self) -> Iterator[list[Entry]]:
        """Yield the remaining entries in batches, which is the fastest way to read a log.

        Do not combine it with other reads. A batch holds the entries of one read of at most 64 KiB,
        so a live stream is processed as it arrives.
        """
        return map(self._read, self._rest)

    def close(self) -> None:
        """Stop reading and close the file. This also happens after the last entry."""
        self._blocks.close()

    def end(self) -> None:
        """End the log after the bytes that were read, also while a read waits for more.

        A signal handler may call this.
        """
        if not self._source.closed:
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, self._source.fileno())
            os.close(nowhere)

    @property
    def format(self) -> str:
        """The detected format: `access log` (Common or Combined) or `tab-separated trace`."""
        return self._format.name

    @property
    def lines(self) -> int:
        """Number of lines read so far, including malformed ones."""
        return self._line

    @property
    def malformed(self) -> int:
        """Number of lines that could not be parsed; a truncated gzip stream counts as one."""
        return self._malformed

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The first malformed lines, at most `MAX_PROBLEMS` of them."""
        return tuple(self._problems)

    @property
    def size(self) -> int | None:
        """Size of the file on disk in bytes, compressed or not; None for a stream."""
        return self._size

    @property
    def position(self) -> int:
        """Number of bytes of the file read so far."""
        if self._size is None or self._source.closed:
            return self._size or 0
        return self._source.tell()

    def _detect(self) -> tuple[list[_Line], _Format]:
        """Read a log up to the first line that one of the known log formats accepts."""
        head: list[_Line] = []
        formats: tuple[_Format, ...] = (_TabbedFormat(), _AccessFormat())
        for block in self._blocks:
            for line in block[: MAX_HEAD - len(head)]:
                if isinstance(line, str):
                    for candidate in formats:
                        if isinstance(candidate.parse(line), Entry):
                            return head + block, candidate
            head += block
            if len(head) >= MAX_HEAD:
                break
        raise ConfigError(_not_a_log(self._name, head[:MAX_HEAD]))

    def _one_by_one(self) -> Iterator[Entry]:
        for block in self._rest:
            for line in block:
                yield from self._read([line])

    def _read(self, lines: list[_Line]) -> list[Entry]:
        """Parse lines into entries; count and report malformed lines."""
        parse = self._format.parse
        entries: list[Entry] = []
        for at, line in enumerate(lines, self._line + 1):
            entry = parse(line) if isinstance(line, str) else line.why
            if isinstance(entry, Entry):
                entries.append(entry)
            else:
                self._malformed += 1
                if len(self._problems) < MAX_PROBLEMS:
                    self._problems.append(Problem(at, entry))
        self._line += len(lines)
        return entries


def read_log(path: Path, *, standard_input: io.BufferedReader | None = None) -> LogReader:
    """Open an uncompressed or gzip log and detect its format; the path `-` means standard input.

    Only a part of the log is in memory at a time. A truncated or damaged stream yields the entries
    before the damage. Raises `ConfigError` when the file cannot be opened, is empty, or has an
    unknown format.
    """
    if str(path) == "-":
        source = _open(_STDIN, "standard input") if standard_input is None else standard_input
        return LogReader("standard input", source)
    return LogReader(str(path), _open(path, str(path)))


def sorted_by_time(entries: Iterable[Entry]) -> list[Entry]:
    """Sort all entries by time; entries with equal times keep their order.

    Servers write a line when a request ends, so real logs are slightly out of order. All entries
    are in memory.
    """
    return sorted(entries, key=attrgetter("time_ns"))


def _open(file: Path | int, name: str) -> io.BufferedReader:
    try:
        return open(file, "rb", closefd=isinstance(file, Path))
    except FileNotFoundError as error:
        raise ConfigError(f"{name}: no such file; give the path of an access log, or -") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{name} is a directory; name one log file in it") from error
    except OSError as error:
        raise ConfigError(
            f"{name} cannot be opened: {error.strerror}; check that you may read it"
        ) from error


def _not_a_log(name: str, head: list[_Line]) -> str:
    if not head:
        return f"{name} is empty; give a log with at least one request"
    first = next((line.why for line in head if isinstance(line, _Unreadable)), None)
    cause = f" ({first})" if first else ""
    return (
        f"{name}: none of its first {len(head)} lines could be read{cause}; give a log in Apache's"
        " Common or Combined format, or lines of unix seconds, client, method, path and status"
        " separated by tabs"
    )


def _size_of(source: io.BufferedReader) -> int | None:
    """Return the size of a regular file in bytes; None for other files."""
    try:
        status = os.fstat(source.fileno())
    except (OSError, io.UnsupportedOperation):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _blocks_of(source: io.BufferedReader) -> Generator[list[_Line], None, None]:
    """Yield the lines of a log in blocks of one file read: texts, or problems for unreadable
    lines."""
    with source:
        if source.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=source) as unpacked:
                yield from _decoded(unpacked.read1)
        else:
            yield from _decoded(source.read1)


def _decoded(read: Callable[[int], bytes]) -> Iterator[list[_Line]]:
    rest = b""  # The start of a line whose end is not read yet.
    is_cut = False  # The line being read is too long, and was reported.
    while True:
        try:
            raw = read(MAX_LINE)
        except EOFError:
            yield [_Unreadable("the gzip data breaks off here")]
            return
        except (gzip.BadGzipFile, zlib.error) as error:
            yield [_Unreadable(f"the gzip data is damaged from here on: {error}")]
            return
        except OSError as error:
            raise ConfigError(f"the log cannot be read any further: {error.strerror}") from error
        if not raw:
            if rest:
                yield list(_split(rest))
            return
        if is_cut:
            end = raw.find(b"\n") + 1
            if not end:
                continue
            raw, is_cut = raw[end:], False
        data = rest + raw
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        found: list[_Line] = []
        first = whole.find(b"\n") + 1
        if first > MAX_LINE:  # Only the first line can be too long: the others lie within one read.
            found.append(_TOO_LONG)
            whole = whole[first:]
        if whole:
            found += _split(whole[:-1])
        if len(rest) >= MAX_LINE:
            found.append(_TOO_LONG)
            rest, is_cut = b"", True
        yield found


def _split(data: bytes) -> list[str]:
    # Escapes keep different bytes different, and their result can be encoded again.
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    return [line.rstrip("\r") for line in lines] if b"\r" in data else lines


class _TabbedFormat:
    """Parser of tab-separated lines: `unix_seconds[.frac] TAB client TAB method TAB path TAB
    status`."""

    name = "tab-separated trace"

    def parse(self, line: str) -> Entry | str:
        match = _TABBED.fullmatch(line)
        if match is None:
            return "expected seconds, client, method, path and status, separated by tabs"
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


class _AccessFormat:
    """Parser of Apache's Common log format, and of Combined, which appends fields.

    The regular expression `_ACCESS` defines a line. A log repeats its clients, seconds and
    requests, so parsed parts of lines are cached. A line with an unusual part is parsed by the
    whole expression.
    """

    name = "access log"

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
            return 'expected client, identity, user, [time], "request" and status'
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
