"""Conversion of the words of a slot to numbers and back, for the reference implementation and for transfers.

`ringfence.limiter.serialization` defines the numbers of a transfer. Numbers that these functions
do not accept are converted, or rejected, by the reference implementation.
"""

from libc.stdint cimport int64_t, uint64_t

from ringfence.limiter.compiled._algorithms cimport (
    BUCKET, FIXED, LATEST, LOG, MOST_UNITS, SLIDING, Instant, Params, bucket_level, count_of,
    number_of, packed, wide,
)
from ringfence.limiter.compiled._ring cimport Ring, ring_numbers, ring_of

cdef extern from *:
    """
    #define RINGFENCE_MOST_LOG_UNITS ((int64_t)1 << 61)
    """
    const int64_t MOST_LOG_UNITS "RINGFENCE_MOST_LOG_UNITS"


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
        if sum(numbers[1]) >= MOST_LOG_UNITS or not numbers[0] or numbers[0][0] <= -LATEST:
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


cdef inline list state_of(const Params* params, const Instant* t, const uint64_t* words):
    """Return the state of an entry, as `Counter.state` of the reference does. Not for logs."""
    cdef int64_t level
    if params.kind == BUCKET:
        level = bucket_level(words, t)
        return [level // params.unit, level % params.unit]
    if params.kind == FIXED:
        return [number_of(params, words[0]), count_of(params, words[0])]
    return [number_of(params, words[0]), count_of(params, words[0]), <int64_t>words[1]]


cdef inline bint read_state(
    const Params* params, const Instant* t, const int64_t* numbers, Py_ssize_t count, uint64_t* words
) noexcept nogil:
    """Write a state, whose numbers are not negative, into words; return False if it is not accepted."""
    words[1] = 0
    if params.kind == BUCKET:
        return _read_bucket(params, t, numbers, count, words)
    return params.kind != LOG and _read_window(params, t, numbers, count, words)


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
