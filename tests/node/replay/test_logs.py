import bz2
import gzip
import hashlib
import io
import lzma
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import as_file, files
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.replay.log_formats import AccessFormat, Entry
from node.replay.logs import (
    MAX_HEAD,
    MAX_LINE,
    MAX_PROBLEMS,
    Defect,
    LogReader,
    Problem,
    _decoded,
    read_log,
    sorted_by_time,
)
from ringfence.errors import ConfigError

NS = 1_000_000_000
COMMON = b'203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 12'
COMBINED = COMMON + b' "http://example.org/?q=1" "A browser (x; y)"'
TABBED = b"1431857103\t203.0.113.7\tGET\t/a?b=c\t200"
END = int(datetime(2116, 1, 1, tzinfo=UTC).timestamp())
PARSED = Entry(1431857103 * NS, "203.0.113.7", "GET", "/a", "200")


def read_lines(*lines: bytes) -> LogReader:
    """Read lines as a log from standard input."""
    return read_bytes(b"".join(line + b"\n" for line in lines))


def read_bytes(content: bytes) -> LogReader:
    return read_log(Path("-"), standard_input=io.BufferedReader(io.BytesIO(content)))


def read_request(request: bytes) -> Entry:
    (entry,) = read_lines(COMMON.replace(b"GET /a?b=c HTTP/1.1", request))
    return entry


@pytest.mark.parametrize("line", [COMMON, COMBINED, TABBED])
def test_each_format_is_read_to_the_same_entry_without_the_query_string(line: bytes) -> None:
    assert list(read_lines(line)) == [PARSED]


def test_the_format_is_detected_from_the_first_readable_line() -> None:
    assert read_lines(b"# a comment", COMBINED).format == "access log"
    assert read_lines(b"", TABBED).format == "tab-separated trace"


def test_gzip_is_detected_from_the_content_and_not_from_the_file_name(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.gz", tmp_path / "packed.log"
    plain.write_bytes(COMMON)
    packed.write_bytes(gzip.compress(COMMON, mtime=0))

    assert list(read_log(plain)) == list(read_log(packed)) == [PARSED]


def test_standard_input_may_be_gzipped() -> None:
    assert list(read_bytes(gzip.compress(TABBED + b"\r\n", mtime=0))) == [PARSED]


@pytest.mark.parametrize(
    ("zone", "offset_s"),
    [(b"+0000", 0), (b"-0700", 7 * 3600), (b"+0530", -(5 * 3600 + 1800)), (b"+1400", -14 * 3600)],
)
def test_the_offset_of_the_time_zone_is_applied(zone: bytes, offset_s: int) -> None:
    (entry,) = read_lines(COMMON.replace(b"+0000", zone))

    assert entry.time_ns == PARSED.time_ns + offset_s * NS


@given(
    st.datetimes(datetime(1970, 1, 3), datetime(2106, 1, 1)),  # noqa: DTZ001 - the zone is generated
    st.integers(-12 * 4, 14 * 4).map(lambda quarters: timezone(timedelta(minutes=15 * quarters))),
)
def test_a_time_stamp_is_read_as_its_instant_in_the_calendar(
    when: datetime, zone: timezone
) -> None:
    when = when.replace(tzinfo=zone, microsecond=0)
    stamp = when.strftime("%d/%b/%Y:%H:%M:%S %z").encode()

    (entry,) = read_lines(COMMON.replace(b"17/May/2015:10:05:03 +0000", stamp))

    assert datetime.fromtimestamp(entry.time_ns / NS, UTC) == when


@pytest.mark.parametrize(
    ("written", "time_ns"),
    [
        (b"1442018952.942", 1442018952942000000),
        (b"1442018952.123456789", 1442018952123456789),
        (b"1442018952.1234567894", 1442018952123456789),
        (b"0", 0),
    ],
)
def test_fractions_of_a_second_are_exact(written: bytes, time_ns: int) -> None:
    (entry,) = read_lines(TABBED.replace(b"1431857103", written))

    assert entry.time_ns == time_ns


def test_a_client_may_be_an_ipv6_address_or_a_name() -> None:
    entries = read_lines(
        COMMON.replace(b"203.0.113.7", b"2001:db8::1"),
        COMMON.replace(b"203.0.113.7 - -", b'host.example.org - "Anna of Example"'),
    )

    assert [entry.client for entry in entries] == ["2001:db8::1", "host.example.org"]


@pytest.mark.parametrize(
    ("names", "client"),
    [
        (b"www.example.org 203.0.113.7 - -", "203.0.113.7"),
        (b"www.example.org:443 2001:db8::1 - anna", "2001:db8::1"),
        (b"www.example.org 203.0.113.7 - Anna of Example", "203.0.113.7"),
        (b"10.0.0.1 203.0.113.7 - -", "203.0.113.7"),  # The server's address in place of its name.
        (b"www.example.org host.example.net - -", "host.example.net"),
        (b"- 203.0.113.7 - -", "203.0.113.7"),  # The request named no host.
        (b"203.0.113.7 - 198.51.100.1", "203.0.113.7"),  # The user name is an address.
        (b"203.0.113.7 - a.b - -", "203.0.113.7"),
        (b"203.0.113.7 anna.example -", "203.0.113.7"),  # An identity with a dot.
        (b"host.example.net - -", "host.example.net"),
        (b"203.0.113.7, 198.51.100.1 - -", "203.0.113.7,"),  # Forwarded addresses, no host.
    ],
)
def test_a_virtual_host_is_distinguished_from_the_client_in_each_line(
    names: bytes, client: str
) -> None:
    entries = list(read_lines(COMMON, COMMON.replace(b"203.0.113.7 - -", names), COMMON))

    assert [entry.client for entry in entries] == [PARSED.client, client, PARSED.client]


_NAMES = ["203.0.113.7 - - ", "www.example.org 203.0.113.7 - - ", "a[b - - ", "a\tb ", " ", ""]
_NAMES += ['h "Anna [x] y" ', "\u2003"]
_STAMPS = ["[17/May/2015:10:05:03 +0000] ", "[31/Feb/2015:10:05:03 +0000] ", "[", ""]
_STAMPS += ["[17/May/2015:10:05:03 +0000]", "17/May/2015:10:05:03 +0000] "]
_REQUESTS = ['"GET /a?b HTTP/1.1"', r'"GET /\"x\" HTTP/1.1"', r'"GET /a\"', r'"\\"']
_REQUESTS += ['"-"', '""', "-", '"GET /a', "\\", ""]
_TAILS = [" 200 5", " 200", " -", " 2000", " - 12", ' 404 0 "-" "x"', "é", ""]
_PIECES = [*_NAMES, *_STAMPS, *_REQUESTS, *_TAILS]


def test_a_line_of_known_pieces_is_parsed_as_by_the_whole_expression() -> None:
    parser = AccessFormat()

    for line in map("".join, product(_NAMES, _STAMPS, _REQUESTS, _TAILS)):
        assert parser.parse(line) == parser.parse_whole(line)


@given(st.lists(st.lists(st.sampled_from(_PIECES), max_size=9).map("".join), max_size=20))
def test_a_line_of_shuffled_pieces_is_parsed_as_by_the_whole_expression(lines: list[str]) -> None:
    parser = AccessFormat()
    good = COMBINED.decode()

    for line in [good, *lines, good]:
        assert parser.parse(line) == parser.parse_whole(line)


@pytest.mark.parametrize("cut", [0, 30, 60, 62, 90, 120])
@pytest.mark.parametrize("insert", ['"', "\\", "[", " ", "x", "\t", ""])
def test_a_line_that_differs_at_one_place_is_parsed_as_by_the_whole_expression(
    cut: int, insert: str
) -> None:
    parser = AccessFormat()
    good = COMBINED.decode()
    changed = good[:cut] + insert + good[cut:]

    for line in (good, changed, good[:cut] + insert, good[cut:], changed, good):
        assert parser.parse(line) == parser.parse_whole(line)


def test_the_cache_of_parsed_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.replay.log_formats._MAX_PIECES", 10)
    parser = AccessFormat()
    good = COMBINED.decode()

    for number in range(100):
        parser.parse(good.replace("203.0.113.7", str(number)).replace("/a", f"/{number}"))
    parser.parse(good.replace("/a", "/" * 1000))

    assert 0 < len(parser._clients) <= 10
    assert 0 < len(parser._requests) <= 10
    assert max(map(len, parser._requests)) < 300


@given(st.binary(max_size=300), st.integers(1, 40))
def test_the_lines_do_not_depend_on_the_sizes_of_reads(content: bytes, size: int) -> None:
    def lines_of(step: int) -> list[object]:
        parts = iter([content[at : at + step] for at in range(0, len(content), step)])
        return [line for block in _decoded(lambda most: next(parts, b"")) for line in block]

    assert lines_of(size) == lines_of(len(content) + 1)


def test_a_batch_contains_the_lines_of_one_read() -> None:
    log = read_log(Path("-"), standard_input=io.BufferedReader(_LineByLine([COMMON + b"\n"] * 3)))

    assert [len(batch) for batch in log.batches()] == [1, 1, 1]
    assert log.lines == 3


class _LineByLine(io.RawIOBase):
    """Stream that returns one line per read."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = iter(lines)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        line = next(self._lines, b"")
        buffer[: len(line)] = line
        return len(line)


@pytest.mark.parametrize(
    ("request_", "method", "path"),
    [
        (b"GET /old", "GET", "/old"),  # HTTP/0.9
        (b"-", "-", "-"),
        (b"", "-", "-"),
        (rb"\x16\x03\x01", "-", "-"),
        (rb"GET /say/\"hi\" HTTP/1.1", "GET", r"/say/\"hi\""),
        (rb"GET /\" 404 0 \" HTTP/1.1", "GET", r"/\" 404 0 \""),
        (b"GET /two words HTTP/2.0", "GET", "/two words"),
        (b"OPTIONS * HTTP/1.1", "OPTIONS", "*"),
    ],
)
def test_unusual_request_lines_are_read(request_: bytes, method: str, path: str) -> None:
    entry = read_request(request_)

    assert (entry.method, entry.path, entry.status) == (method, path, "200")


def test_bytes_that_are_no_utf_8_are_escaped_and_stay_distinct() -> None:
    latin, other = read_request(b"GET /caf\xe9 HTTP/1.1"), read_request(b"GET /caf\xe8 HTTP/1.1")

    assert latin.path == r"/caf\xe9"
    assert latin.path != other.path
    assert read_request("GET /café HTTP/1.1".encode()).path == "/café"


def test_malformed_lines_are_counted_and_the_first_ones_are_reported() -> None:
    log = read_lines(COMMON, *[b"nonsense"] * 20, COMMON)

    assert len(list(log)) == 2
    assert (log.lines, log.malformed, log.defect) == (22, 20, None)
    assert len(log.problems) == MAX_PROBLEMS
    assert log.problems[0].line == 2


NO_TIME = "time must be a valid time from 1970 to 2115, got "


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (COMMON.replace(b"17/May", b"31/Feb"), NO_TIME + "31/Feb/2015:10:05:03 +0000"),
        (COMMON.replace(b"17/May", b"17/Mai"), NO_TIME + "17/Mai/2015:10:05:03 +0000"),
        (COMMON.replace(b"10:05:03", b"24:05:03"), NO_TIME + "17/May/2015:24:05:03 +0000"),
        (COMMON.replace(b"2015", b"1815"), NO_TIME + "17/May/1815:10:05:03 +0000"),
        (COMMON.replace(b"2015", b"2116"), NO_TIME + "17/May/2116:10:05:03 +0000"),
        (COMMON.replace(b"2015", b"9999"), NO_TIME + "17/May/9999:10:05:03 +0000"),
        (b"", 'expected client, identity, user, [time], "request" and status'),
        (TABBED, 'expected client, identity, user, [time], "request" and status'),
        (b"x" * (3 * MAX_LINE), f"longer than {MAX_LINE} bytes"),
    ],
)
def test_a_malformed_line_is_reported_with_the_reason(line: bytes, why: str) -> None:
    log = read_lines(COMMON, line, COMMON)

    assert len(list(log)) == 2
    assert log.problems == (Problem(2, why),)


@pytest.mark.parametrize(
    ("surplus", "problems"),
    [
        (-1, ()),
        (0, (Problem(2, f"longer than {MAX_LINE} bytes"),)),
        (5, (Problem(2, f"longer than {MAX_LINE} bytes"),)),
    ],
)
def test_a_line_that_continues_in_the_next_read_is_measured_as_a_whole(
    surplus: int, problems: tuple[Problem, ...]
) -> None:
    padding = b"x" * (MAX_LINE + surplus - len(COMMON))
    long = COMMON.replace(b"/a", b"/a" + padding)

    log = read_lines(COMMON, long, COMMON)

    assert len(list(log)) == 3 - len(problems)
    assert log.problems == problems


def test_a_trace_line_with_too_few_columns_is_malformed() -> None:
    log = read_lines(TABBED, b"1431857103\t203.0.113.7\tGET\t/a", b"-1\tc\tGET\t/\t200", TABBED)

    assert len(list(log)) == 2
    assert [problem.line for problem in log.problems] == [2, 3]


def test_a_line_after_the_year_2115_is_malformed() -> None:
    trace = read_lines(*[b"%d.5\tc\tGET\t/\t200" % second for second in (END - 1, END, END + 9)])
    log = read_lines(
        *[
            COMMON.replace(b"17/May/2015:10:05:03", time)
            for time in (b"31/Dec/2115:23:59:59", b"01/Jan/2116:00:00:00")
        ]
    )

    assert [entry.time_ns for entry in trace] == [END * NS - NS // 2]
    assert [entry.time_ns for entry in log] == [(END - 1) * NS]
    assert trace.problems[0] == Problem(2, f"{NO_TIME}{END}")
    assert (trace.malformed, log.malformed) == (2, 1)


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_every_line_of_any_bytes_is_an_entry_or_malformed(noise: list[bytes]) -> None:
    content = b"\n".join([COMMON, *noise, COMMON])

    log = read_bytes(content)
    entries = list(log)

    assert entries[0] == PARSED
    assert log.lines == content.count(b"\n") + 1 == len(entries) + log.malformed


def test_a_truncated_gzip_is_read_up_to_its_end_which_counts_as_malformed() -> None:
    lines = [b"%d\tclient%d\tGET\t/\t200\n" % (at, at * at) for at in range(5000)]
    whole = gzip.compress(b"".join(lines))

    log = read_bytes(whole[: len(whole) // 2])
    entries = list(log)

    assert 1000 < len(entries) < 5000
    assert [entry.time_ns // NS for entry in entries] == list(range(len(entries)))
    assert (log.malformed, log.defect) == (1, Defect.BREAKS_OFF)
    assert log.problems == (Problem(len(entries) + 1, "the gzip data breaks off here"),)


def test_a_damaged_gzip_is_read_up_to_the_damage() -> None:
    whole = gzip.compress(TABBED + b"\n", mtime=0) + b"\x1f\x8bdamage" * 9

    log = read_bytes(whole)

    assert list(log) == [PARSED]
    assert (log.malformed, log.defect) == (1, Defect.DAMAGED)
    assert log.problems[0].why.startswith("the gzip data is damaged: ")


def test_a_gzip_with_a_changed_byte_yields_wrong_lines_until_its_checksum_shows_the_damage() -> (
    None
):
    lines = [b"%d\tclient%d\tGET\t/\t200\n" % (at, at * at) for at in range(5000)]
    damaged = bytearray(gzip.compress(b"".join(lines), mtime=0))
    damaged[len(damaged) // 2] ^= 1

    log = read_bytes(bytes(damaged))
    entries = list(log)

    assert [entry.time_ns // NS for entry in entries] != list(range(len(entries)))
    assert log.defect is Defect.DAMAGED


def test_other_bytes_after_a_gzip_are_no_damage_of_the_lines_before() -> None:
    log = read_bytes(gzip.compress(TABBED + b"\n", mtime=0) + b"other bytes")

    assert list(log) == [PARSED]
    assert log.defect is Defect.OTHER_BYTES
    assert log.problems == (Problem(2, "other bytes follow the gzip data"),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "standard input is empty; give a log with at least one request"),
        (
            gzip.compress(b"", mtime=0),
            "standard input is empty; give a log with at least one request",
        ),
        (
            b'{"time": 1}\n' * 200,
            f"none of its first {MAX_HEAD} lines could be read; give a log in",
        ),
        (
            gzip.compress(COMMON * 50, mtime=0)[:12],
            r"\(line 1: the gzip data breaks off here\); give a log in",
        ),
        (
            b"#\n" + b"\n".join([COMMON.replace(b"17/May", b"31/Feb")] * 5),
            rf"could be read \(line 2: {NO_TIME}31/Feb[^;]*; line 3: [^;]*; line 4: [^;]*\); give",
        ),
        (
            lzma.compress(COMMON),
            "standard input: a log must be a plain or a gzip file, got xz; deco",
        ),
        (bz2.compress(COMMON), "got bzip2; decompress it first"),
        (b"\x28\xb5\x2f\xfd\x24\x00", "got zstd; decompress it first"),
        (b"PK\x03\x04\x14\x00", "got zip; decompress it first"),
    ],
)
def test_input_that_is_no_log_is_rejected_with_the_expected_formats(
    content: bytes, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_bytes(content)


def test_a_missing_file_and_a_directory_are_rejected_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.log: no such file; give the path"):
        read_log(tmp_path / "nowhere.log")
    with pytest.raises(ConfigError, match="is a directory; name one log file in it"):
        read_log(tmp_path)


def test_a_reader_reads_only_the_lines_that_are_requested() -> None:
    source = io.BufferedReader(io.BytesIO((TABBED + b"\n") * 100_000))
    log = read_log(Path("-"), standard_input=source)

    next(log)

    assert log.lines == 1
    assert source.tell() < 100_000


def test_the_position_grows_to_the_size_of_a_file_and_is_zero_for_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_bytes((TABBED + b"\n") * 10_000)
    log, stream = read_log(file), read_lines(TABBED)

    next(log)
    assert log.size == file.stat().st_size
    assert 0 < log.position < log.size
    assert [*log]
    assert log.position == log.size
    assert [*stream]
    assert (stream.size, stream.position) == (None, 0)


@given(st.lists(st.integers(0, 5), max_size=50))
def test_sorting_by_time_keeps_the_order_within_one_instant(times: list[int]) -> None:
    entries = [Entry(time, str(index), "GET", "/", "200") for index, time in enumerate(times)]

    ordered = sorted_by_time(iter(entries))

    assert [(entry.time_ns, int(entry.client)) for entry in ordered] == sorted(
        zip(times, range(len(times)), strict=True)
    )


def test_the_bundled_log_is_read_completely_and_equals_its_published_trace() -> None:
    with as_file(files("node.demo") / "semicomplete-2015-05.log.gz") as path:
        log = read_log(path)
        entries = list(log)

    assert (log.lines, log.malformed, log.format) == (10_000, 0, "access log")
    assert len({entry.client for entry in entries}) == 1_753
    assert Counter(entry.method for entry in entries) == {
        "GET": 9_952,
        "HEAD": 42,
        "POST": 5,
        "OPTIONS": 1,
    }
    # Another program made the trace of this digest. Its lines have the fields `seconds client
    # method path status` with tabs between them. Paths have at most 160 characters. The lines are
    # sorted as bytes.
    rows = sorted(
        f"{e.time_ns // NS}\t{e.client}\t{e.method}\t{e.path[:160]}\t{e.status}\n" for e in entries
    )
    assert hashlib.sha256("".join(rows).encode()).hexdigest() == DIGEST_OF_TRACE


DIGEST_OF_TRACE = "812cd628384841e5778051ba4c1771258729c47f918f523891af7b5eeeac1552"
