"""Conversion of the words of a slot to numbers and back, for the reference implementation and for transfers.

`ringfence.limiter.serialization` defines the numbers of a transfer, `packed_snapshot` packed rows. Numbers that these functions
do not accept are converted, or rejected, by the reference implementation.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from ringfence.limiter.compiled._algorithms cimport (
    BUCKET, FIXED, LATEST, LOG, MOST_UNITS, SLIDING, Instant, Params, bucket_level, count_of,
    number_of, packed, wide,
)
from ringfence.limiter.compiled._ring cimport (
    Hits, Ring, ring_entries, ring_expire, ring_numbers, ring_of, ring_read, ring_record,
)

cdef extern from *:
    """
    #define RINGFENCE_MOST_LOG_UNITS ((int64_t)1 << 61)
    """
    const int64_t MOST_LOG_UNITS "RINGFENCE_MOST_LOG_UNITS"

cdef enum:
    MOST_NUMBERS = 16384  # numbers of the longest state


cdef inline object numbers_of(const Params* params, const uint64_t* words):
    """Return the numbers of an entry as `params.numbers_of` does for a counter of the reference."""
    if params.kind == BUCKET:
        return (<int64_t>words[0] + params.base_ns * <object>params.ticks_per_ns,)
    if params.kind == FIXED:
        return number_of(params, words[0]), count_of(params, words[0])
    if params.kind == SLIDING:
        return number_of(params, words[0]), count_of(params, words[0]), <int64_t>words[1]
    return ring_numbers(<Ring*>words[0], params.hit_bytes)


cdef inline bint read_numbers(const Params* params, tuple numbers, uint64_t* words) except -1:
    """Write what `numbers_of` returns into words; return False if it does not fit.

    For a log it allocates a ring, which the caller must free.
    """
    cdef Ring* ring
    words[1] = 0
    if params.kind == BUCKET:
        tat = numbers[0] - params.base_ns * <object>params.ticks_per_ns
        if not -LATEST < tat < LATEST:
            return False
        words[0] = <uint64_t><int64_t>tat
    elif params.kind == LOG:
        if not numbers[0] or numbers[0][0] <= -LATEST or sum(numbers[1]) >= MOST_LOG_UNITS:
            return False
        ring = ring_of(params, numbers[0], numbers[1])
        if ring == NULL:
            return False
        words[0] = <uint64_t>ring
    else:
        if numbers[1] >> params.count_bits or numbers[0] >> (64 - params.count_bits):
            return False
        words[0] = packed(params, numbers[0], numbers[1])
        if params.kind == SLIDING:
            words[1] = numbers[2]
    return True


cdef inline int state_numbers(
    const Params* params, const Instant* t, const uint64_t* words, uint64_t* numbers
) noexcept nogil:
    """Write the state of an entry, as `Counter.state` of the reference; return its length."""
    cdef int64_t level
    if params.kind == LOG:
        return _log_state(<Ring*>words[0], params, t.now, numbers)
    if params.kind == BUCKET:
        level = bucket_level(words, t)
        numbers[0], numbers[1] = level // params.unit, level % params.unit
        return 2
    numbers[0], numbers[1] = number_of(params, words[0]), count_of(params, words[0])
    if params.kind == FIXED:
        return 2
    numbers[2] = words[1]
    return 3


cdef inline int _log_state(
    Ring* ring, const Params* params, int64_t now, uint64_t* numbers
) noexcept nogil:
    """Write alternating ages and hits; entries of a log that is too long are merged."""
    cdef Hits entry
    cdef int64_t stamp, hits = 0, merged = 0, step
    cdef uint32_t at = 0
    cdef int count = 0
    ring_expire(ring, params, now)
    step = (2 * ring_entries(ring, params.hit_bytes) + MOST_NUMBERS - 1) // MOST_NUMBERS
    stamp = ring.first
    while at < ring.used:
        entry = ring_read(ring, params.hit_bytes, at)
        if at:
            stamp += entry.gap
        at += entry.units
        hits += entry.count
        merged += 1
        if merged == step or at == ring.used:
            numbers[count] = <uint64_t>(now - stamp) if stamp < now else 0
            numbers[count + 1] = <uint64_t>hits
            count += 2
            hits = merged = 0
    return count


cdef inline bint read_state(
    const Params* params, const Instant* t, const int64_t* numbers, Py_ssize_t count, uint64_t* words
) noexcept nogil:
    """Write a state, whose numbers are not negative, into words; return False if it is not accepted.

    For a log it allocates a ring, which the caller must free.
    """
    words[1] = 0
    if params.kind == BUCKET:
        return _read_bucket(params, t, numbers, count, words)
    if params.kind == LOG:
        return _read_log(params, t, numbers, count, words)
    return _read_window(params, t, numbers, count, words)


cdef inline bint _read_bucket(
    const Params* params, const Instant* t, const int64_t* numbers, Py_ssize_t count, uint64_t* words
) noexcept nogil:
    """Write a level of whole units and ticks into a word."""
    cdef wide level
    if count != 2 or numbers[0] > MOST_UNITS or numbers[1] >= params.unit:
        return False
    level = <wide>numbers[0] * <wide>params.unit + <wide>numbers[1]
    if level >= <wide>LATEST or t.at + <int64_t>level >= LATEST:
        return False
    words[0] = <uint64_t>(t.at + <int64_t>level)
    return True


cdef inline bint _read_window(
    const Params* params, const Instant* t, const int64_t* numbers, Py_ssize_t count, uint64_t* words
) noexcept nogil:
    """Write the number and the counts of a window into words."""
    if count != (3 if params.kind == SLIDING else 2) or not params.period_ns:
        return False
    if numbers[0] > t.number + 1 or numbers[1] > MOST_UNITS or numbers[1] >> params.count_bits:
        return False
    if params.kind == SLIDING:
        if numbers[2] > MOST_UNITS - numbers[1]:
            return False
        words[1] = <uint64_t>numbers[2]
    words[0] = packed(params, numbers[0], numbers[1])
    return True


cdef inline bint _read_log(
    const Params* params, const Instant* t, const int64_t* numbers, Py_ssize_t count, uint64_t* words
) noexcept nogil:
    """Write the address of a new ring with these ages and hits into a word."""
    cdef Ring* ring = NULL
    cdef Ring* longer
    cdef int64_t total = 0
    cdef Py_ssize_t at
    if count % 2:
        return False
    for at in range(0, count, 2):
        longer = NULL
        if numbers[at] < LATEST and (not at or numbers[at] <= numbers[at - 2]):
            if 0 < numbers[at + 1] <= MOST_UNITS - total:
                longer = ring_record(ring, params, t.now - numbers[at], numbers[at + 1])
        if longer == NULL:
            free(ring)
            return False
        ring = longer
        total += numbers[at + 1]
    words[0] = <uint64_t>ring
    return True


# -- packed rows, see `ringfence.limiter.packed_snapshot` ------------------------------------------

cdef enum:
    LONGEST_PACKED_KEY = 255
    LONGEST_PACKED_NUMBER = 10  # bytes


cdef struct PackedRow:
    const uint8_t* next  # end of this row
    const uint8_t* end
    const uint8_t* state  # integers of the state
    uint64_t numbers
    uint64_t limit
    Py_ssize_t key_size
    uint8_t[LONGEST_PACKED_KEY] key


cdef inline void first_packed_row(PackedRow* row, const uint8_t* rows, Py_ssize_t size) noexcept nogil:
    """Prepare to read rows; `next_packed_row` reads the first one."""
    row.next, row.end, row.key_size = rows, rows + size, 0


cdef inline bint next_packed_row(PackedRow* row) noexcept nogil:
    """Read the next row; return False if the bytes are not a row."""
    cdef const uint8_t* place = row.next
    cdef Py_ssize_t shared, rest
    cdef uint64_t at, number
    if row.end - place < 3:
        return False
    shared, rest = place[0], place[1]
    place += 2
    if shared > row.key_size or shared + rest > LONGEST_PACKED_KEY or rest >= row.end - place:
        return False
    memcpy(row.key + shared, place, rest)
    row.key_size = shared + rest
    place += rest
    if not packed_number(&place, row.end, &row.numbers) or row.numbers > MOST_NUMBERS:
        return False
    row.limit = 0
    row.state = place
    if row.numbers:
        if not packed_number(&place, row.end, &row.limit):
            return False
        row.state = place
        for at in range(row.numbers):
            if not packed_number(&place, row.end, &number):
                return False
    row.next = place
    return True


cdef inline bint packed_number(
    const uint8_t** place, const uint8_t* end, uint64_t* number
) noexcept nogil:
    """Read an integer and move behind it; return False if it is incomplete or above 64 bits."""
    cdef int shift = 0
    cdef uint8_t byte
    number[0] = 0
    while place[0] < end:
        byte = place[0][0]
        if shift == 63 and byte > 1:
            return False
        number[0] |= <uint64_t>(byte & 127) << shift
        place[0] += 1
        if byte < 128:
            return True
        shift += 7
    return False


cdef inline uint8_t* put_packed_number(uint8_t* place, uint64_t number) noexcept nogil:
    """Write an integer; return the place behind it."""
    while number >= 128:
        place[0] = <uint8_t>(number | 128)
        number >>= 7
        place += 1
    place[0] = <uint8_t>number
    return place + 1
