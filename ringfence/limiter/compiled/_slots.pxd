"""Array of slots sorted by identity: open addressing without tombstones.

A slot is a few words. The first word is the identity of the key, 0 if the slot is free. The home of
an identity is proportional to it, so the array is sorted. An identity whose home is taken is in a
slot behind its home, and a removal shifts the entries behind it back. A table grows in order, by a
few slots per new key: identities below a bound are in the new array, the others in the old one. So
a look-up reads one array, mostly one or two cache lines, at any load.

Keys are in an arena of large blocks; a slot refers to its key by a number of 32 bits. The first 8
bytes of a key are the id of its rule, and nearly all keys of an arena have the same id. So a key
with the id of the arena is stored without it. A key is stored with its length in front, in units of
8 bytes, and never across two blocks. The memory of a removed key is used again for a key with as
many units. So a key takes its length without the id plus 1 to 8 bytes; as a Python object it would
take its whole length plus 33 to 48.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset


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
    UNIT = 8  # bytes
    BLOCK_BITS = 13  # so that a block has 64 KiB, which the kernel adds page by page
    BLOCK_UNITS = 1 << BLOCK_BITS
    LONGEST_KEY = 255  # bytes
    MOST_UNITS_OF_KEY = 34  # one more than the longest key needs
    ID = 8  # bytes of the id of a rule
    WHOLE = 255  # in place of the length of a key that is stored with its id; its length follows


cdef struct KeyArena:
    bint has_id
    unsigned char[ID] id  # of the first key; keys with this id are stored without it
    unsigned char** blocks
    uint32_t block_count
    uint32_t next_unused  # number of the first unit that was never used
    uint32_t[MOST_UNITS_OF_KEY] removed  # last removed key by its units; each refers to another
    uint64_t units  # units of all keys


cdef inline unsigned char* key_at(const KeyArena* arena, uint32_t number) noexcept nogil:
    """Return the address of a key: first its length without the id, or `WHOLE`, then its bytes."""
    return arena.blocks[number >> BLOCK_BITS] + (number & (BLOCK_UNITS - 1)) * UNIT


cdef inline uint32_t _units_of(Py_ssize_t size) noexcept nogil:
    return <uint32_t>(size + UNIT - 1) // UNIT


cdef inline uint32_t _units_at(const unsigned char* place) noexcept nogil:
    """Return the units of the key that is stored at `place`."""
    return _units_of(place[1] + 2 if place[0] == WHOLE else place[0] + 1)


cdef inline int key_text(
    const KeyArena* arena, uint32_t number, unsigned char* text
) noexcept nogil:
    """Copy a key to `text`, which has room for `LONGEST_KEY` bytes; return its length."""
    cdef const unsigned char* place = key_at(arena, number)
    if place[0] == WHOLE:
        memcpy(text, place + 2, place[1])
        return place[1]
    memcpy(text, arena.id, ID)
    memcpy(text + ID, place + 1, place[0])
    return ID + place[0]


cdef inline void _reuse(KeyArena* arena, uint32_t number, uint32_t units) noexcept nogil:
    (<uint32_t*>key_at(arena, number))[0] = arena.removed[units]
    arena.removed[units] = number


cdef inline bint _add_block(KeyArena* arena) noexcept nogil:
    cdef unsigned char* block
    cdef unsigned char** blocks
    if arena.block_count == (<uint64_t>1 << 32) >> BLOCK_BITS:
        return False
    blocks = <unsigned char**>realloc(arena.blocks, (arena.block_count + 1) * sizeof(void*))
    if blocks == NULL:
        return False
    arena.blocks = blocks
    block = <unsigned char*>malloc(BLOCK_UNITS * UNIT)
    if block == NULL:
        return False
    blocks[arena.block_count] = block
    arena.block_count += 1
    return True


cdef inline uint32_t key_add(
    KeyArena* arena, const unsigned char* key, Py_ssize_t length
) noexcept nogil:
    """Store a key of at most `LONGEST_KEY` bytes; return its number, or 0 without memory."""
    cdef uint32_t units, number, left
    cdef unsigned char* place
    if not arena.has_id and length >= ID:
        arena.has_id = True
        memcpy(arena.id, key, ID)
    cdef bint is_whole = not arena.has_id or length < ID or memcmp(arena.id, key, ID) != 0
    units = _units_of(length + 2 if is_whole else length - ID + 1)
    number = arena.removed[units]
    if number:
        arena.removed[units] = (<uint32_t*>key_at(arena, number))[0]
    else:
        left = arena.block_count * BLOCK_UNITS - arena.next_unused
        if left < units:
            if not _add_block(arena):
                return 0
            if left:
                _reuse(arena, arena.next_unused, left)
                arena.next_unused += left
            if not arena.next_unused:
                arena.next_unused = 1  # The number 0 means that there is no key.
        number = arena.next_unused
        arena.next_unused += units
    arena.units += units
    place = key_at(arena, number)
    if is_whole:
        place[0] = WHOLE
        place[1] = <unsigned char>length
        memcpy(place + 2, key, length)
    else:
        place[0] = <unsigned char>(length - ID)
        memcpy(place + 1, key + ID, length - ID)
    return number


cdef inline void keys_close(KeyArena* arena) noexcept nogil:
    """Remove all keys, and release their memory."""
    cdef uint32_t block
    for block in range(arena.block_count):
        free(arena.blocks[block])
    free(arena.blocks)
    memset(arena, 0, sizeof(KeyArena))


cdef inline void release_block(KeyArena* arena) noexcept nogil:
    """Release one block of an arena whose keys have all moved to another one."""
    arena.block_count -= 1
    arena.next_unused = arena.block_count * BLOCK_UNITS
    free(arena.blocks[arena.block_count])
    if not arena.block_count:
        keys_close(arena)


cdef inline void key_remove(KeyArena* arena, uint32_t number) noexcept nogil:
    """Remove a key. The memory of all keys is released with the last one."""
    cdef uint32_t units = _units_at(key_at(arena, number))
    arena.units -= units
    if arena.units:
        _reuse(arena, number, units)
    else:
        keys_close(arena)


cdef enum:
    # Minimum size in bytes of an array with large pages from the start. The first check that
    # uses such a page waits while the kernel clears it; all later checks are faster.
    LARGE = 1 << 26
    MIN_SLOTS = 8
    SMALL = 1024  # homes of an array that is not made smaller
    # Sixteenths of the homes: with fewer entries, a smaller array is made. New keys may need a
    # large array again soon, but an eviction must release memory.
    LEAST_LOAD = 4
    LEAST_LOAD_OF_EVICTIONS = 10


cdef struct Slots:
    uint64_t* words
    uint32_t* keys  # number of each slot's key in the arena; NULL if keys are not stored
    KeyArena* arena
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


cdef inline size_t _keys_size(const Slots* s) noexcept nogil:
    return s.size * sizeof(uint32_t)


cdef inline void slots_settle(Slots* s) noexcept nogil:
    """Advise large pages, because the move into the array is complete."""
    ringfence_large_pages(s.words, _words_size(s))


cdef inline bint slots_open(
    Slots* s, int per_slot, uint64_t homes, KeyArena* arena
) noexcept nogil:
    """Make an array of free slots; return False without memory. `arena` is NULL without keys."""
    s.per_slot = per_slot
    s.homes = homes
    s.size = homes + 64 + homes // 64
    s.count = 0
    s.keys = NULL
    s.arena = arena
    s.words = <uint64_t*>ringfence_zeroed(_words_size(s))
    if s.words == NULL:
        return False
    if _words_size(s) >= LARGE:
        slots_settle(s)
    if arena != NULL:
        s.keys = <uint32_t*>ringfence_zeroed(_keys_size(s))
        if s.keys == NULL:
            ringfence_free(s.words, _words_size(s))
            s.words = NULL
            return False
    return True


cdef inline uint64_t _fullest(const Slots* s) noexcept nogil:
    """Return the maximum load in sixteenths of the homes, which is higher for larger slots."""
    return 14 if s.per_slot > 2 else 13


cdef inline uint64_t homes_needed(const Slots* s) noexcept nogil:
    """Return the homes of a new array for the entries: an eighth more than they need."""
    return s.count * 18 // _fullest(s) + MIN_SLOTS


cdef inline bint is_full(const Slots* s) noexcept nogil:
    """Whether the array needs more homes."""
    return s.count * 16 >= s.homes * _fullest(s)


cdef inline bint is_too_large(const Slots* s, uint64_t least_load) noexcept nogil:
    """Whether the load is below `least_load`, in sixteenths of the homes."""
    return s.homes > SMALL and s.count * 16 < s.homes * least_load


cdef inline void slots_close(Slots* s) noexcept nogil:
    if s.words != NULL:
        ringfence_free(s.words, _words_size(s))
    if s.keys != NULL:
        ringfence_free(s.keys, _keys_size(s))
    memset(s, 0, sizeof(Slots))


cdef inline bint _extend(Slots* s) noexcept nogil:
    """Add room behind the last home; return False, without effect, without memory."""
    cdef Slots longer = s[0]
    longer.size += s.size // 8 + 64
    longer.words = <uint64_t*>ringfence_extended(s.words, _words_size(s), _words_size(&longer))
    if longer.words == NULL:
        return False
    s.words = longer.words
    if s.keys != NULL:
        longer.keys = <uint32_t*>ringfence_extended(
            s.keys, _keys_size(s), _keys_size(&longer)
        )
        if longer.keys == NULL:
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
    if s.keys != NULL:
        memmove(s.keys + place + 1, s.keys + place, (end - place) * sizeof(uint32_t))
    s.count += 1
    return True


cdef inline void shift_back(Slots* s, uint64_t place) noexcept nogil:
    """Free a slot, and shift the entries behind it that are not at their home back by one."""
    cdef uint64_t end = place + 1
    while slot(s, end)[0] and home(s, slot(s, end)[0]) < end:
        end += 1
    memmove(slot(s, place), slot(s, place + 1), (end - 1 - place) * s.per_slot * sizeof(uint64_t))
    memset(slot(s, end - 1), 0, s.per_slot * sizeof(uint64_t))
    if s.keys != NULL:
        memmove(s.keys + place, s.keys + place + 1, (end - 1 - place) * sizeof(uint32_t))
        s.keys[end - 1] = 0
    s.count -= 1


# -- keys of slots -------------------------------------------------------------------------------


cdef inline uint64_t slot_bytes(const Slots* s) noexcept nogil:
    """Return the bytes of a slot and of the number of its key."""
    return s.per_slot * sizeof(uint64_t) + (s.keys != NULL) * sizeof(uint32_t)


cdef inline uint64_t list_keys(const Slots* s, uint64_t place, list found, Py_ssize_t most):
    """Add the keys from `place` on to `found`, up to `most` in all; return the identity of the
    first one left out, or 0."""
    cdef unsigned char[LONGEST_KEY] text
    cdef int length
    for place in range(place, s.size):
        if slot(s, place)[0]:
            if len(found) >= most:
                return slot(s, place)[0]
            length = key_text(s.arena, s.keys[place], text)
            found.append(text[:length])
    return 0


cdef inline KeyArena* other_arena(const Slots* s, KeyArena* arenas) noexcept nogil:
    """Return the one of two arenas that an array does not use."""
    return &arenas[0] if s.arena == &arenas[1] else &arenas[1]


cdef inline KeyArena* arena_of_next(const Slots* s, KeyArena* arenas) noexcept nogil:
    """Return the one of two arenas for the array after `s`.

    If a quarter of the present arena is unused, it is the other one, so that it is released.
    """
    if s.arena == NULL or s.arena.units * 4 > <uint64_t>s.arena.next_unused * 3:
        return s.arena
    return other_arena(s, arenas)


cdef inline bint move_key(const Slots* old, uint64_t place, const Slots* new, uint32_t* key) noexcept nogil:
    """Set `key` to the number that a moved key has in the new array; return False without memory."""
    cdef unsigned char[LONGEST_KEY] text
    cdef int length
    if old.keys == NULL:
        return True
    key[0] = old.keys[place]
    if old.arena != new.arena:
        length = key_text(old.arena, key[0], text)
        key[0] = key_add(new.arena, text, length)
    return key[0] != 0


cdef inline void key_moved(const Slots* old, uint64_t place, const Slots* new) noexcept nogil:
    """Count the key of a moved slot for the arena of the new array only."""
    if old.arena != new.arena:
        old.arena.units -= _units_at(key_at(old.arena, old.keys[place]))


cdef inline void release_slots(const Slots* s, uint64_t begin, uint64_t end) noexcept nogil:
    """Release the memory of slots that are not read again."""
    ringfence_release_pages(<char*>slot(s, begin), <char*>slot(s, end))
    if s.keys != NULL:
        ringfence_release_pages(<char*>(s.keys + begin), <char*>(s.keys + end))
