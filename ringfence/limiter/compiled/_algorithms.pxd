"""Arithmetic of buckets and windows on the words of a slot, as the reference defines it.

Each function returns what the function of the same name in `ringfence.limiter.reference` returns,
for counters that fit: 62 bits of nanoseconds, and the number and count of a window in one word.
"""

from libc.stdint cimport int64_t, uint64_t


cdef extern from *:
    """
    typedef unsigned __int128 ringfence_wide;
    #define RINGFENCE_LATEST ((int64_t)1 << 62)
    #define RINGFENCE_MOST_UNITS ((int64_t)1 << 60)
    """
    const int64_t LATEST "RINGFENCE_LATEST"
    const int64_t MOST_UNITS "RINGFENCE_MOST_UNITS"
    ctypedef unsigned long long wide "ringfence_wide"


cdef enum Kind:
    BUCKET = 0
    FIXED = 1
    SLIDING = 2
    LOG = 3


cdef enum Code:
    ALLOWED = 0
    OVER_SOFT = 1
    DENIED = 2
    NEVER = 3


cdef struct Params:
    # Parameters of a limit that each check needs.
    Kind kind
    int words  # per slot, the identity included
    int64_t ceiling
    int64_t hard
    int64_t unit  # ticks until one unit of cost is available again
    int64_t ticks_per_ns
    int64_t capacity
    int64_t hard_capacity
    bint is_queue
    int64_t base_ns  # origin of the ticks of buckets
    int64_t period_ns  # of a window or of a log; 0 for calendar windows
    int count_bits  # bits of the count in a word that holds the number and the count of a window
    int hit_bytes  # of a hit in a log


cdef struct Instant:
    # One instant in the units of the parameters.
    int64_t now
    int64_t at  # in ticks since the base
    int64_t number  # of the window
    int64_t start
    int64_t end


cdef struct Answer:
    int code
    int64_t remaining
    int64_t retry_after
    int64_t reset_after
    int64_t delay


cdef inline int64_t _floor_div(int64_t part, int64_t whole) noexcept nogil:
    """Divide two numbers that are not negative, rounded down.

    Where the error is at most one, it uses floating point, which is three times as fast on many
    processors.
    """
    cdef int64_t found, rest
    if part >= <int64_t>1 << 53:
        return part // whole
    found = <int64_t>(<double>part / <double>whole)
    rest = part - found * whole
    if rest < 0:
        return found - 1
    return found + 1 if rest >= whole else found


cdef inline int64_t _ceil_div(int64_t part, int64_t whole) noexcept nogil:
    """Divide, rounded up; `part` is not negative."""
    return part if whole == 1 else _floor_div(part + whole - 1, whole)


cdef inline int64_t _scaled(int64_t count, int64_t part, int64_t whole) noexcept nogil:
    """Return `count * part // whole`, without overflow of the product."""
    cdef wide product = <wide>count * <wide>part
    if product >> 63 == 0:
        return <int64_t>product // whole
    return <int64_t>(product // <wide>whole)


# -- buckets: one word, the TAT in ticks since the base ------------------------------------------


cdef inline int64_t bucket_level(const uint64_t* word, const Instant* t) noexcept nogil:
    cdef int64_t level = <int64_t>word[0] - t.at
    return level if level > 0 else 0


cdef inline bint bucket_check(
    const Params* params, const Instant* t, uint64_t* word, int64_t cost, Answer* answer
) noexcept nogil:
    """Add `cost` units if the bucket has room; return whether the word has changed."""
    cdef int64_t level = bucket_level(word, t)
    cdef int64_t wanted = cost if cost else 1
    cdef int64_t tpn = params.ticks_per_ns
    answer.retry_after = answer.delay = 0
    if wanted > params.ceiling or level + wanted * params.unit > params.capacity:
        answer.code = NEVER if wanted > params.ceiling else DENIED
        if answer.code == DENIED:
            answer.retry_after = _ceil_div(level + wanted * params.unit - params.capacity, tpn)
        answer.remaining = _floor_div(params.capacity - level, params.unit) if level < params.capacity else 0
        answer.reset_after = _ceil_div(level, tpn)
        return False
    if cost:
        if params.is_queue:
            answer.delay = _ceil_div(level, tpn)
        level += cost * params.unit
        word[0] = <uint64_t>(t.at + level)
    answer.code = ALLOWED if level <= params.hard_capacity else OVER_SOFT
    answer.remaining = _floor_div(params.capacity - level, params.unit)
    answer.reset_after = _ceil_div(level, tpn)
    return cost != 0


# -- fixed windows: one word, number and count ---------------------------------------------------


cdef inline int64_t number_of(const Params* params, uint64_t word) noexcept nogil:
    return <int64_t>(word >> params.count_bits)


cdef inline int64_t count_of(const Params* params, uint64_t word) noexcept nogil:
    return <int64_t>(word & ((<uint64_t>1 << params.count_bits) - 1))


cdef inline uint64_t packed(const Params* params, int64_t number, int64_t count) noexcept nogil:
    return (<uint64_t>number << params.count_bits) | <uint64_t>count


cdef inline int64_t fixed_used(const Params* params, const Instant* t, uint64_t word) noexcept nogil:
    return count_of(params, word) if number_of(params, word) >= t.number else 0


cdef inline bint fixed_check(
    const Params* params, const Instant* t, uint64_t* word, int64_t cost, Answer* answer
) noexcept nogil:
    """Count `cost` in the current window if it fits."""
    cdef int64_t number = number_of(params, word[0])
    cdef int64_t used = count_of(params, word[0])
    cdef int64_t left
    if number > t.number:  # The clock has gone back, which never happens with calendar windows.
        left = (number + 1) * params.period_ns - t.now
    else:
        if number < t.number:
            number = t.number
            used = 0
        left = t.end - t.now
    cdef int64_t wanted = cost if cost else 1
    answer.retry_after = answer.delay = 0
    if wanted > params.ceiling - used:
        answer.remaining = params.ceiling - used if used < params.ceiling else 0
        answer.reset_after = left if used else 0
        if wanted > params.ceiling:
            answer.code = NEVER
        else:
            answer.code = DENIED
            answer.retry_after = answer.reset_after
        return False
    if cost:
        used += cost
        word[0] = packed(params, number, used)
    answer.code = ALLOWED if used <= params.hard else OVER_SOFT
    answer.remaining = params.ceiling - used
    answer.reset_after = left if used else 0
    return cost != 0


# -- sliding windows: number and count of the current window, count of the one before it ---------


cdef inline void _roll(
    const Params* params, const Instant* t, const uint64_t* words,
    int64_t* number, int64_t* current, int64_t* oldest
) noexcept nogil:
    number[0] = number_of(params, words[0])
    current[0] = count_of(params, words[0])
    oldest[0] = <int64_t>words[1]
    if t.number > number[0]:
        oldest[0] = current[0] if t.number == number[0] + 1 else 0
        current[0] = 0
        number[0] = t.number


cdef inline int64_t _estimate(
    const Params* params, const Instant* t, int64_t number, int64_t current, int64_t oldest
) noexcept nogil:
    if oldest and t.now > number * params.period_ns:
        oldest = _scaled(oldest, (number + 1) * params.period_ns - t.now, params.period_ns)
    return current + oldest


cdef inline int64_t sliding_used(
    const Params* params, const Instant* t, const uint64_t* words
) noexcept nogil:
    cdef int64_t number, current, oldest
    _roll(params, t, words, &number, &current, &oldest)
    return _estimate(params, t, number, current, oldest)


cdef inline int64_t _overlap(int64_t spare, int64_t period_ns, int64_t oldest) noexcept nogil:
    """Return the longest overlap in which the weight of `oldest` hits is at most `spare`."""
    cdef wide product = <wide>(spare + 1) * <wide>period_ns - 1
    if product >> 63 == 0:
        return <int64_t>product // oldest
    return <int64_t>(product // <wide>oldest)


cdef inline int64_t _wait(
    const Params* params, const Instant* t, int64_t number, int64_t current, int64_t oldest,
    int64_t room
) noexcept nogil:
    """Return the exact time until the estimate, now above `room`, has fallen to `room`."""
    cdef int64_t period_ns = params.period_ns
    cdef int64_t spare = room - current
    cdef int64_t overlap
    if spare >= oldest:
        return number * period_ns - t.now
    if spare >= 0:
        overlap = _overlap(spare, period_ns, oldest)
        if overlap:
            return (number + 1) * period_ns - overlap - t.now
    if room >= current:
        return (number + 1) * period_ns - t.now
    overlap = _overlap(room, period_ns, current)
    return (number + 2) * period_ns - overlap - t.now


cdef inline int64_t _sliding_reset(
    const Params* params, const Instant* t, int64_t number, int64_t current, int64_t oldest
) noexcept nogil:
    if current:
        return (number + 2) * params.period_ns - _floor_div(params.period_ns - 1, current) - t.now
    return _wait(params, t, number, current, oldest, 0)


cdef inline bint sliding_check(
    const Params* params, const Instant* t, uint64_t* words, int64_t cost, Answer* answer
) noexcept nogil:
    """Count `cost` in the current window if the estimate leaves room for it."""
    cdef int64_t number, current, oldest
    _roll(params, t, words, &number, &current, &oldest)
    cdef int64_t used = _estimate(params, t, number, current, oldest)
    cdef int64_t wanted = cost if cost else 1
    answer.retry_after = answer.delay = 0
    if wanted > params.ceiling - used:
        answer.remaining = params.ceiling - used if used < params.ceiling else 0
        answer.reset_after = (
            _sliding_reset(params, t, number, current, oldest) if used else 0
        )
        if wanted > params.ceiling:
            answer.code = NEVER
        else:
            answer.code = DENIED
            answer.retry_after = _wait(params, t, number, current, oldest, params.ceiling - wanted)
        return False
    if cost:
        used += cost
        current += cost
        words[0] = packed(params, number, current)
        words[1] = <uint64_t>oldest
    answer.code = ALLOWED if used <= params.hard else OVER_SOFT
    answer.remaining = params.ceiling - used
    answer.reset_after = _sliding_reset(params, t, number, current, oldest) if used else 0
    return cost != 0


cdef inline int read_params(Params* params, dict values) except -1:
    """Read the parameters that `params.params_of` computes for a scheme."""
    params.kind = values["kind"]
    params.words = 3 if params.kind == SLIDING else 2
    params.ceiling = values["ceiling"]
    params.hard = values["hard"]
    params.unit = values.get("unit", 0)
    params.ticks_per_ns = values.get("ticks_per_ns", 0)
    params.capacity = values.get("capacity", 0)
    params.hard_capacity = values.get("hard_capacity", 0)
    params.is_queue = values.get("is_queue", False)
    params.period_ns = values.get("period_ns", 0)
    params.count_bits = values.get("count_bits", 0)
    params.hit_bytes = values.get("hit_bytes", 0)
    return 0
