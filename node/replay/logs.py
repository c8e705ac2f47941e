"""Access logs as a stream of entries, whatever their format: Common, Combined or tab-separated.

Decides what a line means, which lines cannot be read and why. What is asked of the limiter for an
entry, and when, belongs to the replay.
"""

import gzip
import io
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND

__all__ = ["Entry", "LogReader", "Problem", "read_log", "sorted_by_time"]

MAX_LINE = 65_536
"""Longest line in bytes; what exceeds it is skipped without being held in memory."""
MAX_PROBLEMS = 5
"""How many malformed lines are named; all are counted."""
MAX_HEAD = 100
"""How many lines may pass before one is understood; a log that takes longer is none of ours."""

_STDIN = 0
_GZIP_MAGIC = b"\x1f\x8b"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MAX_MINUTES = 4096
"""Bound of the table of minutes already worked out; a log rarely mixes more than a few."""

_ACCESS = re.compile(
    r"(?P<client>\S+) "
    r"[^\[]*"  # identity and user, which may hold spaces
    r"\[(?P<minute>\d\d/[A-Za-z]{3}/\d{4}:\d\d:\d\d):(?P<second>[0-5]\d|60) "
    r"(?P<zone>[+-][01]\d[0-5]\d)\] "
    r'"(?P<request>[^"\\]*(?:\\.[^"\\]*)*)" '
    r"(?P<status>\d{3}|-)(?: |$)",
    re.ASCII,
)
_TABBED = re.compile(
    r"(\d{1,10})(?:\.(\d{1,18}))?\t([^\t]+)\t([^\t]*)\t([^\t]*)\t([^\t]*)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a log."""

    time_ns: int
    """When, in nanoseconds since the Unix epoch."""
    client: str
    """Address, host name or user name, as logged."""
    method: str
    """`-` when the request line holds none."""
    path: str
    """Without the query string, escapes as logged; `-` when the request line holds none."""
    status: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that could not be read."""

    line: int
    """Counted from 1."""
    why: str


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands where a line should be."""

    why: str


class _Format(Protocol):
    """How the lines of one kind of log are read."""

    name: str

    def parse(self, line: str) -> Entry | str:
        """Read a line without its end; a string says why that is impossible."""


class LogReader(Iterator[Entry]):
    """The entries of one log in its own order, read as they are asked for.

    Every line becomes an entry or counts as malformed; the counts are final when the entries end.
    """

    def __init__(self, name: str, lines: Generator[str | _Unreadable, None, None]) -> None:
        self._name = name
        self._lines = lines
        self._line = 0
        self._malformed = 0
        self._problems: list[Problem] = []
        head, self._format = self._detect()
        self._entries = self._read(head)

    def __next__(self) -> Entry:
        return next(self._entries)

    def close(self) -> None:
        """Read no further and close the file, as the end of the entries does by itself."""
        self._lines.close()

    @property
    def format(self) -> str:
        """The format found: `access log` (Common or Combined) or `tab-separated trace`."""
        return self._format.name

    @property
    def lines(self) -> int:
        """Lines read until now, malformed ones included."""
        return self._line

    @property
    def malformed(self) -> int:
        """Lines that did not become an entry; a gzip stream that breaks off counts as one."""
        return self._malformed

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The first malformed lines, at most `MAX_PROBLEMS` of them."""
        return tuple(self._problems)

    def _detect(self) -> tuple[list[str | _Unreadable], _Format]:
        """Read ahead to the first line that one of the formats understands."""
        head: list[str | _Unreadable] = []
        formats: tuple[_Format, ...] = (_TabbedFormat(), _AccessFormat())
        for line in self._lines:
            head.append(line)
            if isinstance(line, str):
                for candidate in formats:
                    if isinstance(candidate.parse(line), Entry):
                        return head, candidate
            if len(head) == MAX_HEAD:
                break
        raise ConfigError(_not_a_log(self._name, head))

    def _read(self, head: list[str | _Unreadable]) -> Iterator[Entry]:
        parse = self._format.parse
        for lines in (head, self._lines):
            for line in lines:
                self._line += 1
                entry = parse(line) if isinstance(line, str) else line.why
                if isinstance(entry, Entry):
                    yield entry
                else:
                    self._malformed += 1
                    if len(self._problems) < MAX_PROBLEMS:
                        self._problems.append(Problem(self._line, entry))


def read_log(path: Path, *, standard_input: io.BufferedReader | None = None) -> LogReader:
    """Open a log, plain or gzip, and find its format; the path `-` means standard input.

    Holds one line at a time. A stream that breaks off or turns bad keeps what was read before.
    Raises `ConfigError` when the file cannot be opened, is empty, or is no log of a known format.
    """
    if str(path) == "-":
        source = _open(_STDIN, "standard input") if standard_input is None else standard_input
        return LogReader("standard input", _lines_of(source))
    return LogReader(str(path), _lines_of(_open(path, str(path))))


def sorted_by_time(entries: Iterable[Entry]) -> list[Entry]:
    """Put entries in order of time, those of one instant in the order they came.

    Servers write a line when a request ends, so real logs are slightly out of order. Holds all.
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


def _not_a_log(name: str, head: list[str | _Unreadable]) -> str:
    if not head:
        return f"{name} is empty; give a log with at least one request"
    first = next((line.why for line in head if isinstance(line, _Unreadable)), None)
    cause = f" ({first})" if first else ""
    return (
        f"{name}: none of its first {len(head)} lines could be read{cause}; give a log in Apache's"
        " Common or Combined format, or lines of unix seconds, client, method, path and status"
        " separated by tabs"
    )


def _lines_of(source: io.BufferedReader) -> Generator[str | _Unreadable, None, None]:
    """Give each line as text without its end, or as the problem that it is."""
    with source:
        if source.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=source) as unpacked:
                yield from _decoded(unpacked.readline)
        else:
            yield from _decoded(source.readline)


def _decoded(read_line: Callable[[int], bytes]) -> Iterator[str | _Unreadable]:
    too_long = False
    while True:
        try:
            raw = read_line(MAX_LINE)
        except EOFError:
            yield _Unreadable("the gzip data breaks off here")
            return
        except (gzip.BadGzipFile, zlib.error) as error:
            yield _Unreadable(f"the gzip data is damaged from here on: {error}")
            return
        except OSError as error:
            raise ConfigError(f"the log cannot be read any further: {error.strerror}") from error
        if not raw:
            return
        is_whole = raw.endswith(b"\n") or len(raw) < MAX_LINE
        if too_long:
            too_long = not is_whole
        elif is_whole:
            # Escapes keep different bytes different, and what they give can be encoded again.
            yield raw.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
        else:
            too_long = True
            yield _Unreadable(f"longer than {MAX_LINE} bytes")


class _TabbedFormat:
    """`unix_seconds[.frac] TAB client TAB method TAB path TAB status`."""

    name = "tab-separated trace"

    def parse(self, line: str) -> Entry | str:
        match = _TABBED.fullmatch(line)
        if match is None:
            return "expected seconds, client, method, path and status, separated by tabs"
        seconds, fraction, client, method, path, status = match.groups()
        time_ns = int(seconds) * NS_PER_SECOND
        if fraction:
            time_ns += int(fraction[:9].ljust(9, "0"))
        return Entry(time_ns, client, method, _without_query(path), status)


class _AccessFormat:
    """Apache's Common log format, and Combined, which only adds to its end."""

    name = "access log"

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, str], int] = {}

    def parse(self, line: str) -> Entry | str:
        match = _ACCESS.match(line)
        if match is None:
            return 'expected client, identity, user, [time], "request" and status'
        client, minute, second, zone, request, status = match.groups()
        start = self._minutes.get((minute, zone))
        if start is None:
            try:
                start = self._work_out(minute, zone)
            except ValueError:
                return f"there is no time {minute}:{second} {zone}"
        time_ns = (start + int(second)) * NS_PER_SECOND
        method, path = _method_and_path(request)
        return Entry(time_ns, client, method, path, status)

    def _work_out(self, minute: str, zone: str) -> int:
        """Turn `17/May/2015:10:05` and `+0200` into seconds since the epoch.

        Raises `ValueError` when no clock ever showed that.
        """
        day, month, year = minute[:2], minute[3:6].capitalize(), minute[7:11]
        hours, minutes = minute[12:14], minute[15:17]
        local = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hours), int(minutes), tzinfo=UTC
        )
        offset = int(zone[1:3]) * 3600 + int(zone[3:]) * 60
        start = int(local.timestamp()) - (offset if zone[0] == "+" else -offset)
        if start < 0:
            raise ValueError
        if len(self._minutes) == _MAX_MINUTES:
            self._minutes.clear()
        self._minutes[minute, zone] = start
        return start


def _method_and_path(request: str) -> tuple[str, str]:
    """Split a request line; HTTP/0.9 has no version, and what is no request gives `-` and `-`."""
    method, space, rest = request.partition(" ")
    if not space:
        return "-", "-"
    target, _, version = rest.rpartition(" ")
    return method, _without_query(target if version.startswith("HTTP/") else rest)


def _without_query(path: str) -> str:
    return path.partition("?")[0]
