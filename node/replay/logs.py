"""Reader of access logs, also compressed and of any length.

Decides the format of a log, and reports malformed lines. The replay decides which checks an entry
causes, and when.
"""

import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from node.replay.log_formats import AccessFormat, Entry, Format, TabbedFormat
from ringfence.errors import ConfigError

__all__ = ["Defect", "LogReader", "Problem", "read_log", "sorted_by_time"]

MAX_LINE = 65_536
"""Maximum bytes of a line; longer lines are skipped without being held in memory."""
MAX_PROBLEMS = 5
"""Number of malformed lines that are reported; all are counted."""
MAX_HEAD = 100
"""Maximum number of lines before the first valid one; else the format is unknown."""

_MAX_REASONS = 3
"""Number of lines whose problems are in the error for an unknown format."""

_STDIN = 0
_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_MAGIC = 10
_COMPRESSED = re.compile(
    rb"(?P<xz>\xfd7zXZ\x00)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<zstd>\(\xb5/\xfd)|(?P<zip>PK\x03\x04)"
)
"""First bytes of files that the reader cannot decompress, by their format."""


class Problem(Struct, frozen=True):
    """Line of a log that could not be parsed, with the reason."""

    line: int
    """Counted from 1."""
    why: str


class Defect(StrEnum):
    """Reason why the end of a gzip log could not be read, with its effect on the result."""

    BREAKS_OFF = (
        "the log is not complete: its gzip data breaks off; the result is that of the lines before"
    )
    OTHER_BYTES = (
        "the log has other bytes after its gzip data; the result is that of the lines before"
    )
    DAMAGED = (
        "the log is damaged: its gzip data is invalid or has another checksum; lines anywhere may "
        "be wrong, so do not use the result; give an intact copy"
    )


class _Unreadable(Struct, frozen=True):
    """Placeholder for a line that could not be read."""

    why: str
    defect: Defect | None = None
    """Why the rest of the log cannot be read either."""


_TOO_LONG = _Unreadable(f"longer than {MAX_LINE} bytes")
_Line: TypeAlias = str | _Unreadable


class LogReader(Iterator[Entry]):
    """Entries of one log in file order, read on demand.

    Every line becomes an entry or counts as malformed. The counts are final when the entries end.
    """

    def __init__(self, name: str, source: io.BufferedReader) -> None:
        self._name = name
        self._source = source
        self._size = _size_of(source)
        self._blocks = _blocks_of(source, name)
        self._line = 0
        self._malformed = 0
        self._defect: Defect | None = None
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
    def defect(self) -> Defect | None:
        """Why the end of a gzip log could not be read; None if it was."""
        return self._defect

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

    def _detect(self) -> tuple[list[_Line], Format]:
        """Read a log up to the first line that one of the known log formats accepts."""
        head: list[_Line] = []
        formats: tuple[Format, ...] = (TabbedFormat(), AccessFormat())
        for block in self._blocks:
            for line in block[: MAX_HEAD - len(head)]:
                if isinstance(line, str):
                    for candidate in formats:
                        if isinstance(candidate.parse(line), Entry):
                            return head + block, candidate
            head += block
            if len(head) >= MAX_HEAD:
                break
        raise ConfigError(_not_a_log(self._name, head[:MAX_HEAD], formats))

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
                self._defect = line.defect if isinstance(line, _Unreadable) else None
                if len(self._problems) < MAX_PROBLEMS:
                    self._problems.append(Problem(at, entry))
        self._line += len(lines)
        return entries


def read_log(path: Path, *, standard_input: io.BufferedReader | None = None) -> LogReader:
    """Open an uncompressed or gzip log and detect its format; the path `-` means standard input.

    Only a part of the log is in memory at a time. A truncated or damaged stream yields the entries
    up to its end or to the discovery of the damage. Raises `ConfigError` when the file cannot be
    opened, is empty, or has an unknown format.
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


def _not_a_log(name: str, head: list[_Line], formats: Sequence[Format]) -> str:
    if not head:
        return f"{name} is empty; give a log with at least one request"
    problems = [
        f"line {number}: {why}"
        for number, line in enumerate(head, 1)
        if (why := _special_problem(line, formats)) is not None
    ]
    cause = f" ({'; '.join(problems[:_MAX_REASONS])})" if problems else ""
    return (
        f"{name}: none of its first {len(head)} lines could be read{cause}; give a log in Apache's"
        " Common or Combined format, or lines of unix seconds, client, method, path and status"
        " separated by tabs"
    )


def _special_problem(line: _Line, formats: Sequence[Format]) -> str | None:
    """Return why a line cannot be read, unless it merely has another form than all formats."""
    if isinstance(line, _Unreadable):
        return line.why
    for each in formats:
        parsed = each.parse(line)
        if isinstance(parsed, str) and parsed != each.expected:
            return parsed
    return None


def _size_of(source: io.BufferedReader) -> int | None:
    """Return the size of a regular file in bytes; None for other files."""
    try:
        status = os.fstat(source.fileno())
    except (OSError, io.UnsupportedOperation):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _blocks_of(source: io.BufferedReader, name: str) -> Generator[list[_Line], None, None]:
    """Yield the lines of a log in blocks of one file read: texts, or problems for unreadable
    lines. Raises `ConfigError` when the reader cannot decompress the log."""
    with source:
        compressed = _COMPRESSED.match(source.peek(_LONGEST_MAGIC))
        if compressed is not None:
            raise ConfigError(
                f"{name}: a log must be a plain or a gzip file, got {compressed.lastgroup}; "
                "decompress it first"
            )
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
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield [_defective(error)]
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


def _defective(error: Exception) -> _Unreadable:
    if isinstance(error, EOFError):
        return _Unreadable("the gzip data breaks off here", Defect.BREAKS_OFF)
    if str(error).startswith("Not a gzipped file"):  # Another gzip stream would be valid here.
        return _Unreadable("other bytes follow the gzip data", Defect.OTHER_BYTES)
    return _Unreadable(f"the gzip data is damaged: {error}", Defect.DAMAGED)


def _split(data: bytes) -> list[str]:
    # Escapes keep different bytes different, and their result can be encoded again.
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    return [line.rstrip("\r") for line in lines] if b"\r" in data else lines
