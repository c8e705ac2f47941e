"""An array of slots in the order of their identities: open addressing without tombstones.

A slot is a few words, the first of which is the key's identity, 0 when it is free. The home of an
identity is its share of the array, so the array is sorted; whoever comes too late for its home
stands in the next free slots behind it, and a removed entry draws those behind it back. A table
grows by being copied, in order, a few slots per new key: identities below a bound are in the new
array already, the others still in the old one. So a look-up reads one array, and mostly one or two
lines of memory, however full it is.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.string cimport memmove, memset


cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    #if defined(__unix__) || defined(__APPLE__)
    #include <sys/mman.h>
    #endif
    static inline uint64_t ringfence_share(uint64_t identity, uint64_t of) {
        return (uint64_t)(((unsigned __int128)identity * of) >> 64);
    }
    /* Give the whole pages inside [from, to) back: nothing in them is read again. */
    static inline void ringfence_give_back(char *from, char *to) {
    #ifdef MADV_DONTNEED
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t first = ((uintptr_t)from + page - 1) / page * page;
        uintptr_t last = (uintptr_t)to / page * page;
        if (first < last) madvise((void *)first, last - first, MADV_DONTNEED);
    #endif
    }
    /* Zeroed memory. Large arrays are mapped: what malloc has had before it would clear at once,
       while the kernel clears page by page as they are first used. */
    #define RINGFENCE_MAPPED ((size_t)1 << 17)
    static inline void *ringfence_zeroed(size_t size) {
    #ifdef __linux__
        if (size >= RINGFENCE_MAPPED) {
            void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            return mapped == MAP_FAILED ? NULL : mapped;
        }
    #endif
        return calloc(1, size);
    }
    static inline void ringfence_freed(void *memory, size_t size) {
    #ifdef __linux__
        if (memory != NULL && size >= RINGFENCE_MAPPED) {
            munmap(memory, size);
            return;
        }
    #endif
        free(memory);
    }
    static inline void *ringfence_lengthened(void *memory, size_t size, size_t longer) {
        void *copy = ringfence_zeroed(longer);
        if (copy == NULL) return NULL;
        memcpy(copy, memory, size);
        ringfence_freed(memory, size);
        return copy;
    }
    /* An array that is full now and read at random: larger pages spare look-ups of addresses.
       They come later, by the kernel's leave, so that no check waits for them. */
    static inline void ringfence_large_pages(void *memory, size_t size) {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (size >= (size_t)8 << 20) madvise(memory, size, MADV_HUGEPAGE);
    #endif
    }
    #define ringfence_prefetch(address) __builtin_prefetch((const void *)(address), 1)
    """
    uint64_t ringfence_share(uint64_t identity, uint64_t of) nogil
    void ringfence_give_back(char* begin, char* end) nogil
    void* ringfence_zeroed(size_t size) nogil
    void ringfence_freed(void* memory, size_t size) nogil
    void* ringfence_lengthened(void* memory, size_t size, size_t longer) nogil
    void ringfence_large_pages(void* memory, size_t size) nogil
    void ringfence_prefetch(const void* address) nogil


cdef enum:
    # From here on, an array has large pages from the start, although a check that is the first to
    # use one waits while the kernel clears it: that is shorter than what the others gain.
    LARGE = 1 << 26


cdef struct Slots:
    uint64_t* words
    PyObject** names  # per slot the key itself; NULL when nobody needs them
    int per_slot  # words
    uint64_t homes
    uint64_t size  # slots: the homes, and room behind the last one
    uint64_t count  # slots in use


cdef inline uint64_t* slot(const Slots* s, uint64_t place) noexcept nogil:
    return s.words + place * s.per_slot


cdef inline uint64_t home(const Slots* s, uint64_t identity) noexcept nogil:
    return ringfence_share(identity, s.homes)


cdef inline size_t _words_size(const Slots* s) noexcept nogil:
    return s.size * s.per_slot * sizeof(uint64_t)


cdef inline size_t _names_size(const Slots* s) noexcept nogil:
    return s.size * sizeof(void*)


cdef inline void slots_settle(Slots* s) noexcept nogil:
    """Nothing will be moved into the array any more, but new entries come one by one."""
    ringfence_large_pages(s.words, _words_size(s))


cdef inline bint slots_open(
    Slots* s, int per_slot, uint64_t homes, bint with_names
) noexcept nogil:
    """Make an array of free slots; False without memory."""
    s.per_slot = per_slot
    s.homes = homes
    s.size = homes + 64 + homes // 64
    s.count = 0
    s.names = NULL
    s.words = <uint64_t*>ringfence_zeroed(_words_size(s))
    if s.words == NULL:
        return False
    if _words_size(s) >= LARGE:
        slots_settle(s)
    if with_names:
        s.names = <PyObject**>ringfence_zeroed(_names_size(s))
        if s.names == NULL:
            ringfence_freed(s.words, _words_size(s))
            s.words = NULL
            return False
    return True


cdef inline void slots_close(Slots* s) noexcept nogil:
    if s.words != NULL:
        ringfence_freed(s.words, _words_size(s))
    if s.names != NULL:
        ringfence_freed(s.names, _names_size(s))
    memset(s, 0, sizeof(Slots))


cdef inline bint _lengthen(Slots* s) noexcept nogil:
    """Make more room behind the last home; False, and no change, without memory."""
    cdef Slots longer = s[0]
    longer.size += s.size // 8 + 64
    longer.words = <uint64_t*>ringfence_lengthened(s.words, _words_size(s), _words_size(&longer))
    if longer.words == NULL:
        return False
    s.words = longer.words
    if s.names != NULL:
        longer.names = <PyObject**>ringfence_lengthened(
            s.names, _names_size(s), _names_size(&longer)
        )
        if longer.names == NULL:
            return False
    s[0] = longer
    return True


cdef inline uint64_t seek(const Slots* s, uint64_t identity, uint64_t begin) noexcept nogil:
    """The place of an identity, or the one where it belongs; the last slot is always free."""
    cdef uint64_t place = home(s, identity)
    if place < begin:
        place = begin
    cdef const uint64_t* word = slot(s, place)
    while word[0] and word[0] < identity:
        place += 1
        word += s.per_slot
    return place


cdef inline bint make_way(Slots* s, uint64_t place) noexcept nogil:
    """Move entries on so that `place` is free; False without memory."""
    cdef uint64_t end = place
    while slot(s, end)[0]:
        end += 1
    while end + 1 >= s.size:
        if not _lengthen(s):
            return False
    memmove(slot(s, place + 1), slot(s, place), (end - place) * s.per_slot * sizeof(uint64_t))
    if s.names != NULL:
        memmove(s.names + place + 1, s.names + place, (end - place) * sizeof(void*))
    s.count += 1
    return True


cdef inline void close_up(Slots* s, uint64_t place) noexcept nogil:
    """Free a slot: entries behind it that are not at home move back by one."""
    cdef uint64_t end = place + 1
    while slot(s, end)[0] and home(s, slot(s, end)[0]) < end:
        end += 1
    memmove(slot(s, place), slot(s, place + 1), (end - 1 - place) * s.per_slot * sizeof(uint64_t))
    memset(slot(s, end - 1), 0, s.per_slot * sizeof(uint64_t))
    if s.names != NULL:
        memmove(s.names + place, s.names + place + 1, (end - 1 - place) * sizeof(void*))
        s.names[end - 1] = NULL
    s.count -= 1
