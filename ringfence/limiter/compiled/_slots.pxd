"""Array of slots sorted by identity: open addressing without tombstones.

A slot is a few words. The first word is the identity of the key, 0 if the slot is free. The home of
an identity is proportional to it, so the array is sorted. An identity whose home is taken is in a
slot behind its home, and a removal shifts the entries behind it back. A table grows in order, by a
few slots per new key: identities below a bound are in the new array, the others in the old one. So
a look-up reads one array, mostly one or two cache lines, at any load.
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
    static inline uint64_t ringfence_scale(uint64_t identity, uint64_t of) {
        return (uint64_t)(((unsigned __int128)identity * of) >> 64);
    }
    /* Release the whole pages inside [from, to), which are not read again. */
    static inline void ringfence_release_pages(char *from, char *to) {
    #ifdef MADV_DONTNEED
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t first = ((uintptr_t)from + page - 1) / page * page;
        uintptr_t last = (uintptr_t)to / page * page;
        if (first < last) madvise((void *)first, last - first, MADV_DONTNEED);
    #endif
    }
    /* Return zeroed memory. Large arrays are mapped: the kernel clears each page at its first use,
       while calloc would clear reused memory at once. */
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
    static inline void ringfence_free(void *memory, size_t size) {
    #ifdef __linux__
        if (memory != NULL && size >= RINGFENCE_MAPPED) {
            munmap(memory, size);
            return;
        }
    #endif
        free(memory);
    }
    static inline void *ringfence_extended(void *memory, size_t size, size_t longer) {
        void *copy = ringfence_zeroed(longer);
        if (copy == NULL) return NULL;
        memcpy(copy, memory, size);
        ringfence_free(memory, size);
        return copy;
    }
    /* Advise large pages for an array that is read at random: they need fewer address look-ups.
       The kernel sets them up later, so no check waits for them. */
    static inline void ringfence_large_pages(void *memory, size_t size) {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (size >= (size_t)8 << 20) madvise(memory, size, MADV_HUGEPAGE);
    #endif
    }
    #define ringfence_prefetch(address) __builtin_prefetch((const void *)(address), 1)
    """
    uint64_t ringfence_scale(uint64_t identity, uint64_t of) nogil
    void ringfence_release_pages(char* begin, char* end) nogil
    void* ringfence_zeroed(size_t size) nogil
    void ringfence_free(void* memory, size_t size) nogil
    void* ringfence_extended(void* memory, size_t size, size_t longer) nogil
    void ringfence_large_pages(void* memory, size_t size) nogil
    void ringfence_prefetch(const void* address) nogil


cdef enum:
    # Minimum size in bytes of an array with large pages from the start. The first check that
    # uses such a page waits while the kernel clears it; all later checks are faster.
    LARGE = 1 << 26


cdef struct Slots:
    uint64_t* words
    PyObject** names  # key of each slot; NULL if keys are not stored
    int per_slot  # words
    uint64_t homes
    uint64_t size  # number of slots: the homes, and room behind the last home
    uint64_t count  # slots in use


cdef inline uint64_t* slot(const Slots* s, uint64_t place) noexcept nogil:
    return s.words + place * s.per_slot


cdef inline uint64_t home(const Slots* s, uint64_t identity) noexcept nogil:
    return ringfence_scale(identity, s.homes)


cdef inline size_t _words_size(const Slots* s) noexcept nogil:
    return s.size * s.per_slot * sizeof(uint64_t)


cdef inline size_t _names_size(const Slots* s) noexcept nogil:
    return s.size * sizeof(void*)


cdef inline void slots_settle(Slots* s) noexcept nogil:
    """Advise large pages, because the move into the array is complete."""
    ringfence_large_pages(s.words, _words_size(s))


cdef inline bint slots_open(
    Slots* s, int per_slot, uint64_t homes, bint keeps_keys
) noexcept nogil:
    """Make an array of free slots; return False without memory."""
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
    if keeps_keys:
        s.names = <PyObject**>ringfence_zeroed(_names_size(s))
        if s.names == NULL:
            ringfence_free(s.words, _words_size(s))
            s.words = NULL
            return False
    return True


cdef inline void slots_close(Slots* s) noexcept nogil:
    if s.words != NULL:
        ringfence_free(s.words, _words_size(s))
    if s.names != NULL:
        ringfence_free(s.names, _names_size(s))
    memset(s, 0, sizeof(Slots))


cdef inline bint _extend(Slots* s) noexcept nogil:
    """Add room behind the last home; return False, without effect, without memory."""
    cdef Slots longer = s[0]
    longer.size += s.size // 8 + 64
    longer.words = <uint64_t*>ringfence_extended(s.words, _words_size(s), _words_size(&longer))
    if longer.words == NULL:
        return False
    s.words = longer.words
    if s.names != NULL:
        longer.names = <PyObject**>ringfence_extended(
            s.names, _names_size(s), _names_size(&longer)
        )
        if longer.names == NULL:
            return False
    s[0] = longer
    return True


cdef inline uint64_t seek(const Slots* s, uint64_t identity, uint64_t begin) noexcept nogil:
    """Return the place of an identity, or the place for it. The last slot is always free."""
    cdef uint64_t place = home(s, identity)
    if place < begin:
        place = begin
    cdef const uint64_t* word = slot(s, place)
    while word[0] and word[0] < identity:
        place += 1
        word += s.per_slot
    return place


cdef inline bint shift_forward(Slots* s, uint64_t place) noexcept nogil:
    """Shift entries forward so that `place` is free; return False without memory."""
    cdef uint64_t end = place
    while slot(s, end)[0]:
        end += 1
    while end + 1 >= s.size:
        if not _extend(s):
            return False
    memmove(slot(s, place + 1), slot(s, place), (end - place) * s.per_slot * sizeof(uint64_t))
    if s.names != NULL:
        memmove(s.names + place + 1, s.names + place, (end - place) * sizeof(void*))
    s.count += 1
    return True


cdef inline void shift_back(Slots* s, uint64_t place) noexcept nogil:
    """Free a slot, and shift the entries behind it that are not at their home back by one."""
    cdef uint64_t end = place + 1
    while slot(s, end)[0] and home(s, slot(s, end)[0]) < end:
        end += 1
    memmove(slot(s, place), slot(s, place + 1), (end - 1 - place) * s.per_slot * sizeof(uint64_t))
    memset(slot(s, end - 1), 0, s.per_slot * sizeof(uint64_t))
    if s.names != NULL:
        memmove(s.names + place, s.names + place + 1, (end - 1 - place) * sizeof(void*))
        s.names[end - 1] = NULL
    s.count -= 1
