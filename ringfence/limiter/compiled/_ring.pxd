"""Logs of hits: for each key a ring buffer of the times between hits, in few bytes per hit.

A narrow entry stands for one hit. It is one unit of `hit_bytes` bytes: the nanoseconds since the
previous entry, little-endian. A unit of zeros begins a wide entry, for a longer gap or for several
hits at one instant: eight bytes of nanoseconds and eight bytes of hits follow. So no time stamp is
rounded, and a log needs few bytes more than its hits.
"""

from cpython.array cimport array, resize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from ringfence.limiter.compiled._algorithms cimport (
    ALLOWED, BUCKET, DENIED, FIXED, LOG, NEVER, OVER_SOFT, SLIDING, Answer, Instant, Params,
    bucket_level, fixed_used, sliding_used,
)


cdef struct Ring:
    int64_t first  # stamp of the oldest entry
    int64_t last  # stamp of the newest one
    int64_t total  # hits
    uint32_t room  # capacity in units
    uint32_t head  # first unit of the oldest entry
    uint32_t used  # units in use
    uint32_t newest  # units of the newest entry
    unsigned char units[1]


cdef struct Hits:
    # One decoded entry.
    int64_t gap
    int64_t count
    uint32_t units


cdef enum:
    RING_HEAD = 40
    MIN_UNITS = 4
    EXTRA_ENTRIES = 1024  # entries for charges above the limit, as in the reference


cdef inline uint32_t _wide_units(int width) noexcept nogil:
    return 1 + (16 + width - 1) // width


cdef inline void _unit_out(const Ring* ring, int width, uint32_t at, unsigned char* out) noexcept nogil:
    cdef uint32_t place = ring.head + at
    if place >= ring.room:
        place -= ring.room
    memcpy(out, &ring.units[<size_t>place * width], width)


cdef inline void _unit_in(Ring* ring, int width, uint32_t at, const unsigned char* unit) noexcept nogil:
    cdef uint32_t place = ring.head + at
    if place >= ring.room:
        place -= ring.room
    memcpy(&ring.units[<size_t>place * width], unit, width)


cdef inline Hits ring_read(const Ring* ring, int width, uint32_t at) noexcept nogil:
    """Read the entry that begins `at` units after the oldest one."""
    cdef Hits hits
    cdef unsigned char[32] wide
    cdef uint64_t gap = 0
    cdef uint32_t unit
    _unit_out(ring, width, at, <unsigned char*>&gap)
    if gap:
        hits.gap = <int64_t>gap
        hits.count = 1
        hits.units = 1
        return hits
    hits.units = _wide_units(width)
    for unit in range(hits.units - 1):
        _unit_out(ring, width, at + 1 + unit, wide + unit * width)
    memcpy(&hits.gap, wide, 8)
    memcpy(&hits.count, wide + 8, 8)
    return hits


cdef inline bint _is_narrow(int width, int64_t gap, int64_t count) noexcept nogil:
    return count == 1 and gap > 0 and (width == 8 or gap >> (8 * width) == 0)


cdef inline size_t ring_bytes(const Ring* ring, int width) noexcept nogil:
    return 0 if ring == NULL else RING_HEAD + <size_t>ring.room * width


cdef inline Ring* _with_room(Ring* ring, int width, uint32_t room) noexcept nogil:
    """Copy a ring, if any, into a new one of `room` units; return NULL without memory."""
    cdef Ring* larger = <Ring*>malloc(RING_HEAD + <size_t>room * width)
    cdef uint32_t straight
    if larger == NULL:
        return NULL
    if ring == NULL:
        memset(larger, 0, RING_HEAD)
    else:
        memcpy(larger, ring, RING_HEAD)
        straight = ring.room - ring.head
        if straight > ring.used:
            straight = ring.used
        memcpy(larger.units, &ring.units[<size_t>ring.head * width], <size_t>straight * width)
        memcpy(
            &larger.units[<size_t>straight * width], ring.units,
            <size_t>(ring.used - straight) * width,
        )
    larger.head = 0
    larger.room = room
    free(ring)
    return larger


cdef inline Ring* ring_append(
    Ring* ring, const Params* params, int64_t stamp, int64_t count
) noexcept nogil:
    """Append hits at a stamp later than all others; return the ring, or NULL without memory.

    Without memory, the old ring is unchanged.
    """
    cdef int width = params.hit_bytes
    cdef int64_t gap = 0 if ring == NULL or not ring.used else stamp - ring.last
    cdef uint32_t used = 0 if ring == NULL else ring.used
    cdef uint32_t room = 0 if ring == NULL else ring.room
    cdef bint narrow
    if not used:
        gap = 1  # The stamp of the oldest entry is in the header.
    narrow = _is_narrow(width, gap, count)
    cdef uint32_t units = 1 if narrow else _wide_units(width)
    cdef uint64_t wanted
    cdef Ring* larger
    if used + units > room:
        # Grow by a quarter, at most to the size of a full log of single hits.
        wanted = used + used // 4 + MIN_UNITS
        if wanted > <uint64_t>params.ceiling:
            wanted = <uint64_t>params.ceiling
        if wanted < used + units:
            wanted = used + units
        larger = _with_room(ring, width, <uint32_t>wanted)
        if larger == NULL:
            return NULL
        ring = larger
    elif room > 4 * MIN_UNITS and 4 * (used + units) < room:
        larger = _with_room(ring, width, 2 * (used + units))
        if larger != NULL:
            ring = larger
    if not used:
        ring.first = stamp
        ring.head = 0
    cdef unsigned char[40] entry
    memset(entry, 0, sizeof(entry))
    cdef uint32_t unit
    if narrow:
        memcpy(entry, &gap, 8)
    else:
        memcpy(entry + width, &gap, 8)
        memcpy(entry + width + 8, &count, 8)
    for unit in range(units):
        _unit_in(ring, width, used + unit, entry + unit * width)
    ring.used += units
    ring.newest = units
    ring.last = stamp
    ring.total += count
    return ring


cdef inline Ring* ring_record(
    Ring* ring, const Params* params, int64_t stamp, int64_t count
) noexcept nogil:
    """Record hits at a stamp, or at the newest stamp if the clock has gone back."""
    if ring == NULL or not ring.used or stamp > ring.last:
        return ring_append(ring, params, stamp, count)
    # Remove the newest entry, and append it again with more hits.
    cdef uint32_t begin = ring.used - ring.newest
    cdef Hits newest = ring_read(ring, params.hit_bytes, begin)
    cdef int64_t last = ring.last
    cdef Ring* written
    ring.used = begin
    ring.total -= newest.count
    ring.last = last - newest.gap
    written = ring_append(ring, params, last, newest.count + count)
    if written == NULL:
        ring.used = begin + newest.units
        ring.total += newest.count
        ring.last = last
    return written


cdef inline void ring_expire(Ring* ring, const Params* params, int64_t now) noexcept nogil:
    """Remove the hits at or before `now - period`."""
    cdef int64_t oldest_kept = now - params.period_ns
    cdef Hits hits
    while ring.used and ring.first <= oldest_kept:
        hits = ring_read(ring, params.hit_bytes, 0)
        ring.total -= hits.count
        ring.used -= hits.units
        ring.head += hits.units
        if ring.head >= ring.room:
            ring.head -= ring.room
        if ring.used:
            ring.first += ring_read(ring, params.hit_bytes, 0).gap


cdef inline bint ring_is_expired(const Ring* ring, const Params* params, int64_t now) noexcept nogil:
    return ring == NULL or not ring.used or ring.last <= now - params.period_ns


cdef inline int64_t _ring_wait(
    const Ring* ring, const Params* params, int64_t excess, int64_t now
) noexcept nogil:
    """Return the time until `excess` hits of the log have expired."""
    cdef uint32_t at = 0
    cdef int64_t stamp = ring.first
    cdef Hits hits = ring_read(ring, params.hit_bytes, 0)
    while excess > hits.count:
        excess -= hits.count
        at += hits.units
        hits = ring_read(ring, params.hit_bytes, at)
        stamp += hits.gap
    return stamp + params.period_ns - now


cdef inline int ring_check(
    const Params* params, const Instant* t, uint64_t* word, int64_t cost, Answer* answer
) noexcept nogil:
    """Record `cost` hits if the window has room; return 1 if the word changed, -1 without memory."""
    cdef Ring* ring = <Ring*>word[0]
    cdef int64_t used = 0
    cdef int64_t wanted = cost if cost else 1
    if ring != NULL:
        ring_expire(ring, params, t.now)
        used = ring.total
    answer.retry_after = answer.delay = 0
    if wanted > params.ceiling - used:
        answer.remaining = params.ceiling - used if used < params.ceiling else 0
        answer.reset_after = ring.last + params.period_ns - t.now if used else 0
        if wanted > params.ceiling:
            answer.code = NEVER
        else:
            answer.code = DENIED
            answer.retry_after = _ring_wait(ring, params, used + wanted - params.ceiling, t.now)
        return 0
    if cost:
        ring = ring_record(ring, params, t.now, cost)
        if ring == NULL:
            return -1
        word[0] = <uint64_t>ring
        used += cost
    answer.code = ALLOWED if used <= params.hard else OVER_SOFT
    answer.remaining = params.ceiling - used
    answer.reset_after = ring.last + params.period_ns - t.now if used else 0
    return cost != 0


cdef inline int64_t ring_entries(const Ring* ring, int width) noexcept nogil:
    """Count the entries of a log, which takes time for each of them."""
    cdef int64_t entries = 0
    cdef uint32_t at = 0
    while at < ring.used:
        at += ring_read(ring, width, at).units
        entries += 1
    return entries


cdef inline bint ring_is_full(const Ring* ring, const Params* params) noexcept nogil:
    """Whether charges above the limit must share entries. Reads the log only when it is in debt."""
    cdef int64_t most = params.ceiling + EXTRA_ENTRIES
    if ring.total < most or ring.used < most:
        return False
    return ring_entries(ring, params.hit_bytes) >= most


cdef inline Ring* ring_of(const Params* params, array stamps, array counts) except? NULL:
    """Make the ring of a log from its stamps and counts; return NULL for an empty log."""
    cdef Ring* ring = NULL
    cdef Ring* longer
    cdef Py_ssize_t at
    cdef int64_t count
    for at in range(min(len(stamps), len(counts))):
        count = counts.data.as_longlongs[at]
        if count == 0:
            continue
        longer = ring_append(ring, params, stamps.data.as_longlongs[at], count)
        if longer == NULL:
            free(ring)
            raise MemoryError
        ring = longer
    return ring


cdef inline tuple ring_numbers(const Ring* ring, int width):
    """Return the stamps and the counts of a ring in two arrays."""
    cdef int64_t stamp = ring.first
    cdef uint32_t at = 0
    cdef Py_ssize_t entry, entries = ring_entries(ring, width)
    cdef Hits hits
    cdef array stamps = array("q"), counts = array("q")
    resize(stamps, entries)
    resize(counts, entries)
    for entry in range(entries):
        hits = ring_read(ring, width, at)
        if at:
            stamp += hits.gap
        stamps.data.as_longlongs[entry] = stamp
        counts.data.as_longlongs[entry] = hits.count
        at += hits.units
    return stamps, counts


cdef inline int64_t weight_of(const Params* params, const Instant* instant, uint64_t* words) noexcept nogil:
    """Return the units that are lost if the entry is evicted; comparable within one limit."""
    if params.kind == BUCKET:
        return bucket_level(words, instant)
    if params.kind == FIXED:
        return fixed_used(params, instant, words[0])
    if params.kind == SLIDING:
        return sliding_used(params, instant, words)
    ring_expire(<Ring*>words[0], params, instant.now)
    return (<Ring*>words[0]).total


cdef inline bint is_expired(const Params* params, const Instant* instant, uint64_t* words) noexcept nogil:
    """Whether the entry can be removed without effect."""
    if params.kind == LOG:
        return ring_is_expired(<Ring*>words[0], params, instant.now)
    return weight_of(params, instant, words) == 0
