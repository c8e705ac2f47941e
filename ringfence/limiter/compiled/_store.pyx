"""Compiled counters of one limit: slots of 16 or 24 bytes, found by a keyed hash of the key.

`_algorithms` and `_ring` define the contents of a slot, `_slots` its position.
`ringfence.limiter.compiled.table` decides which keys are stored here, and stores the others.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from ringfence.limiter.compiled._algorithms cimport (
    BUCKET, FIXED, LATEST, LOG, MOST_UNITS, SLIDING, Answer, Params, bucket_check, fixed_check,
    number_of, read_params, sliding_check,
)
from ringfence.limiter.compiled._ring cimport (
    EXTRA_ENTRIES, Ring, ring_bytes, ring_check, ring_expire, ring_is_full,
    is_expired, ring_record, weight_of,
)
from ringfence.limiter.compiled._siphash cimport sip_key, siphash
from ringfence.limiter.compiled._slots cimport (
    LEAST_LOAD, LEAST_LOAD_OF_EVICTIONS, LONGEST_KEY, MIN_SLOTS, UNIT, KeyArena, Slots,
    arena_of_next, home, homes_needed, is_full, is_too_large, key_add, key_moved, key_remove,
    keys_close, list_keys, move_key, other_arena, release_block, release_slots, ringfence_prefetch,
    seek, shift_back, shift_forward, slot, slot_bytes, slots_close, slots_open, slots_settle,
)
from ringfence.limiter.compiled._states cimport numbers_of, read_numbers, read_state

cdef extern from "Python.h":
    const unsigned char* bytes_in "(const unsigned char *)PyBytes_AS_STRING"(PyObject* name) nogil
    Py_ssize_t size_of "PyBytes_GET_SIZE"(PyObject* name) nogil

cdef enum:
    SLOTS_PER_MOVE = 32  # slots that each new key moves while the table is resized
    # Slots that each new key checks for expired entries, from the hand of a clock on; fewer for
    # logs, because their entries are in other memory. With more slots, fewer such entries remain.
    EXPIRY_SAMPLE = 16
    EXPIRY_SAMPLE_OF_LOGS = 8
    SAMPLE = 16  # entries from which an eviction chooses,
    LARGEST_SAMPLE = 512  # or more if each of them is in use
    RELEASE_AFTER = 16384  # moved slots after which their memory is released

cdef int64_t LARGEST = <int64_t>1 << 61


def siphash_of(bytes secret not None, bytes text not None) -> int:
    """Hash a text by SipHash-2-4 under a key of 16 bytes."""
    if len(secret) != 16:
        raise ValueError(f"a SipHash key has 16 bytes, this one {len(secret)}")
    return siphash(sip_key(secret), text, len(text))


cdef class Store:
    """Counters by key under one scheme, without a bound.

    `params` are the parameters that `ringfence.limiter.compiled.params` computes from the scheme.
    With `keeps_keys`, keys of at most 255 bytes are stored; otherwise keys cannot be listed.
    """

    def __cinit__(self, scheme, dict params not None, bytes secret not None, bint keeps_keys):
        read_params(&self.params, params)
        if len(secret) != 16:
            raise ValueError(f"a SipHash key has 16 bytes, this one {len(secret)}")
        self.key = sip_key(secret)
        self.scheme = scheme
        self.keeps_keys = keeps_keys
        self.instant.now = -1
        cdef KeyArena* arena = &self.arenas[0] if keeps_keys else NULL
        if not slots_open(&self.now_in, self.params.words, MIN_SLOTS, arena):
            raise MemoryError

    def __dealloc__(self):
        self._close(&self.moved_from)
        self._close(&self.now_in)
        keys_close(&self.arenas[0])
        keys_close(&self.arenas[1])

    def __len__(self):
        return self.now_in.count + self.moved_from.count

    def __contains__(self, bytes name not None):
        return self._find(self.identity(<PyObject*>name)) != NULL

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory of the slots, keys and rings."""
        cdef uint64_t size = self.now_in.size
        if self.is_moving:
            size += self.moved_from.size - self.released
        units = self.arenas[0].next_unused + self.arenas[1].next_unused
        return size * slot_bytes(&self.now_in) + units * UNIT + self.ring_bytes

    @property
    def bytes_in_use(self) -> int:
        """Return the bytes of the entries, their keys and rings, which an eviction would release."""
        cdef uint64_t units = self.arenas[0].units + self.arenas[1].units
        # An eighth of the homes stays empty.
        return len(self) * slot_bytes(&self.now_in) * 9 // 8 + units * UNIT + self.ring_bytes

    def keys_from(self, uint64_t identity, int most) -> tuple[list[bytes], int]:
        """Return up to `most` keys from `identity` on, and the identity for the next call, or 0.

        Keys that are in the table during all calls are returned once, also if others change
        meanwhile. Raises `LookupError` when keys are not stored.
        """
        cdef uint64_t begin
        cdef Slots* part = self._part(identity, &begin)
        cdef list found = []
        if not self.keeps_keys:
            raise LookupError("keys: this table knows keys by their identity alone")
        identity = list_keys(part, seek(part, identity, begin), found, most)
        if not identity and self.is_moving and part == &self.now_in:
            identity = list_keys(&self.moved_from, self.next_place, found, most)
        return found, identity

    def get(self, bytes name not None):
        """Return the numbers of the counter of a key for `put`; None without a counter.

        For a bucket: the TAT in ticks. For a window: its number and its count or counts. For a log:
        stamps and counts.
        """
        cdef uint64_t* word = self._find(self.identity(<PyObject*>name))
        if word == NULL:
            return None
        return numbers_of(&self.params, word + 1)

    def put(self, bytes name not None, tuple numbers not None, now) -> bool:
        """Write the counter of a key; return False, without effect, if it does not fit in a slot."""
        cdef uint64_t identity = self.identity(<PyObject*>name)
        cdef uint64_t[2] words
        if not 0 <= now < LATEST or not self.set_instant(now):
            return False
        if not read_numbers(&self.params, numbers, words):
            return False
        self._write(identity, self._find(identity), words, <PyObject*>name)
        return True

    def append(self, bytes name not None, units, now):
        """Count units in the log of a key at `now`, also above the limit; return its hits.

        Returns None, without effect, for other counters and for cases that only the reference
        implementation supports.
        """
        cdef uint64_t* word
        cdef Ring* ring
        cdef int64_t stamp, count
        if self.params.kind != LOG or not 0 <= now < LATEST or not self.set_instant(now):
            return None
        word = self._find(self.identity(<PyObject*>name))
        if word == NULL:
            return None
        ring = <Ring*>word[1]
        stamp = now
        ring_expire(ring, &self.params, stamp)
        if not ring.used or stamp < ring.last:
            return None
        count = max(0, min(units, MOST_UNITS - ring.total))
        if count:
            if stamp - ring.last <= self.params.period_ns // EXTRA_ENTRIES and ring_is_full(
                ring, &self.params
            ):
                stamp = ring.last
            self.ring_bytes -= ring_bytes(ring, self.params.hit_bytes)
            ring = ring_record(ring, &self.params, stamp, count)
            if ring == NULL:
                ring = <Ring*>word[1]
                self.ring_bytes += ring_bytes(ring, self.params.hit_bytes)
                raise MemoryError
            word[1] = <uint64_t>ring
            self.ring_bytes += ring_bytes(ring, self.params.hit_bytes)
        return ring.total

    def pop(self, bytes name not None) -> bool:
        """Remove a key; return whether it had a counter."""
        return self.remove(self.identity(<PyObject*>name))

    cdef bint remove(self, uint64_t identity) noexcept:
        """Remove an identity; return whether it had an entry."""
        cdef uint64_t begin
        cdef Slots* part = self._part(identity, &begin)
        cdef uint64_t place = seek(part, identity, begin)
        cdef bint is_found = slot(part, place)[0] == identity
        if is_found:
            self._remove(part, place)
        return is_found

    def evict(self, now) -> bool:
        """Evict the key of a sample whose loss is smallest; return whether it was in use."""
        self.set_instant(min(max(now, 0), LATEST - 1))
        self._move_or_resize(LEAST_LOAD_OF_EVICTIONS)
        return self._evict() > 0

    def sweep(self, int steps, now) -> None:
        """Remove expired entries from some slots."""
        if 0 <= now < LATEST:
            self.set_instant(now)
            if self.is_moving:
                self._move_on(steps)
            else:
                self._sweep(steps)

    # -- called for every check ----------------------------------------------------------------

    cdef uint64_t identity(self, PyObject* name) noexcept:
        """Return the SipHash of a key, except for two values with another meaning."""
        cdef uint64_t hashed = siphash(self.key, bytes_in(name), size_of(name))
        if hashed == 0:
            return 1
        return hashed - 1 if hashed == <uint64_t>-1 else hashed

    cdef bint set_instant(self, int64_t now) except -1:
        """Set the instant of the following calls; return False if the words cannot express it."""
        cdef int64_t since, span
        if now == self.instant.now:
            return self.is_within
        self.is_within = True
        if self.params.kind == BUCKET:
            since = now - self.params.base_ns
            span = LATEST if self.params.ticks_per_ns == 1 else LARGEST // self.params.ticks_per_ns
            if not -span < since < span and not self.now_in.count + self.moved_from.count:
                self.params.base_ns = now
                since = 0
            if -span < since < span:
                self.instant.at = since * self.params.ticks_per_ns
            else:  # The bucket cannot take units; its level has drained, or never will.
                self.is_within = False
                self.instant.at = LATEST if since > 0 else -LATEST
        elif self.params.kind != LOG:
            if not self.instant.start <= now < self.instant.end:
                if self.params.period_ns:
                    self.instant.number = now // self.params.period_ns
                    self.instant.start = self.instant.number * self.params.period_ns
                    self.instant.end = self.instant.start + self.params.period_ns
                else:
                    start, end = self.scheme.window(now)
                    self.instant.number = self.scheme.number(start)
                    self.instant.start = start
                    self.instant.end = end
            self.is_within = self.instant.number >= 0  # Calendar windows exist before 1970, too.
        self.instant.now = now
        return self.is_within

    cdef void prefetch(self, uint64_t identity) noexcept nogil:
        """Prefetch the memory of the home of an identity."""
        cdef uint64_t begin
        cdef Slots* part = self._part(identity, &begin)
        ringfence_prefetch(slot(part, home(part, identity)))
        ringfence_prefetch(slot(part, home(part, identity)) + 8)

    cdef int decide(
        self, uint64_t identity, PyObject* name, int64_t cost, bint is_only_store, Answer* answer
    ) except -1:
        """Decide a check at the set instant. `is_only_store`: no other store can have the key."""
        cdef uint64_t* word = self._find(identity)
        cdef uint64_t[2] fresh
        if word != NULL:
            if (
                self.params.period_ns == 0 and self.params.kind == FIXED
                and number_of(&self.params, word[1]) > self.instant.number
            ):
                return OUT_OF_RANGE
            self._apply(word + 1, cost, answer)
            return DONE
        if not is_only_store:
            return ABSENT
        fresh[0] = <uint64_t>self.instant.at if self.params.kind == BUCKET else 0
        fresh[1] = 0
        if self._apply(fresh, cost, answer):
            if self.room <= 0:
                if self.params.kind == LOG:
                    self.ring_bytes -= ring_bytes(<Ring*>fresh[0], self.params.hit_bytes)
                    free(<Ring*>fresh[0])
                return FULL
            self._insert(identity, fresh, name)
            self.room -= 1
        return DONE

    cdef bint save(self, uint64_t identity, uint64_t* words) noexcept nogil:
        """Copy the words of an identity for `restore_saved`; return whether it has an entry."""
        cdef uint64_t* word = self._find(identity)
        if word == NULL:
            return False
        memcpy(words, word + 1, (self.params.words - 1) * sizeof(uint64_t))
        return True

    cdef void restore_saved(self, uint64_t identity, bint existed, const uint64_t* words) noexcept:
        """Undo a check at the same instant. Not for logs: their words refer to a changed ring."""
        cdef uint64_t begin
        cdef Slots* part = self._part(identity, &begin)
        cdef uint64_t place = seek(part, identity, begin)
        if slot(part, place)[0] != identity:
            return
        if existed:
            memcpy(slot(part, place) + 1, words, (self.params.words - 1) * sizeof(uint64_t))
        else:
            self._remove(part, place)

    cdef bint restore_state(
        self, uint64_t identity, PyObject* name, const int64_t* numbers, Py_ssize_t count
    ) except -1:
        """Replace an entry by a state from another node; return False, without effect, if it does not fit."""
        cdef uint64_t[2] words
        cdef uint64_t* word = self._find(identity)
        if not read_state(&self.params, &self.instant, numbers, count, words):
            return False
        cdef bint is_unused = is_expired(&self.params, &self.instant, words)
        if not is_unused and (word != NULL or self.room > 0):
            if word == NULL:
                self.room -= 1
            self._write(identity, word, words, name)
            return True
        if self.params.kind == LOG:
            free(<Ring*>words[0])
        if is_unused:
            self.remove(identity)
        return is_unused

    cdef Slots* _part(self, uint64_t identity, uint64_t* begin) noexcept nogil:
        """Return the array of an identity, and the place where its entries begin."""
        if self.is_moving and identity >= self.bound:
            begin[0] = self.next_place
            return &self.moved_from
        begin[0] = 0
        return &self.now_in

    cdef uint64_t* _find(self, uint64_t identity) noexcept nogil:
        cdef uint64_t begin
        cdef Slots* part = self._part(identity, &begin)
        cdef uint64_t* word = slot(part, seek(part, identity, begin))
        return word if word[0] == identity else NULL

    cdef int _apply(self, uint64_t* words, int64_t cost, Answer* answer) except -1:
        """Decide by the words of a slot; return whether they have changed."""
        cdef int changed
        if self.params.kind == BUCKET:
            return bucket_check(&self.params, &self.instant, words, cost, answer)
        if self.params.kind == FIXED:
            return fixed_check(&self.params, &self.instant, words, cost, answer)
        if self.params.kind == SLIDING:
            return sliding_check(&self.params, &self.instant, words, cost, answer)
        cdef size_t before = ring_bytes(<Ring*>words[0], self.params.hit_bytes)
        changed = ring_check(&self.params, &self.instant, words, cost, answer)
        if changed < 0:
            raise MemoryError
        self.ring_bytes += ring_bytes(<Ring*>words[0], self.params.hit_bytes) - before
        return changed

    # -- maintenance ---------------------------------------------------------------------------

    cdef int _write(self, uint64_t identity, uint64_t* word, uint64_t* words, PyObject* name) except -1:
        """Add an entry, or replace the one at `word`; from now on the store frees its ring."""
        if self.params.kind == LOG:
            self.ring_bytes += ring_bytes(<Ring*>words[0], self.params.hit_bytes)
        if word == NULL:
            return self._insert(identity, words, name)
        if self.params.kind == LOG:
            self.ring_bytes -= ring_bytes(<Ring*>word[1], self.params.hit_bytes)
            free(<Ring*>word[1])
        memcpy(word + 1, words, (self.params.words - 1) * sizeof(uint64_t))
        return 0

    cdef int _insert(self, uint64_t identity, uint64_t* words, PyObject* name) except -1:
        """Add a slot for an identity that has none."""
        cdef uint64_t begin, place
        cdef Slots* part
        if self.keeps_keys and size_of(name) > LONGEST_KEY:
            raise ValueError(f"a key has at most {LONGEST_KEY} bytes, this one {size_of(name)}")
        if not self.is_moving:
            self._sweep(EXPIRY_SAMPLE_OF_LOGS if self.params.kind == LOG else EXPIRY_SAMPLE)
        self._move_or_resize(LEAST_LOAD)
        part = self._part(identity, &begin)
        place = seek(part, identity, begin)
        if not shift_forward(part, place):
            raise MemoryError
        if self.keeps_keys:
            part.keys[place] = key_add(part.arena, bytes_in(name), size_of(name))
            if not part.keys[place]:
                shift_back(part, place)
                raise MemoryError
        slot(part, place)[0] = identity
        memcpy(slot(part, place) + 1, words, (self.params.words - 1) * sizeof(uint64_t))
        return 0

    cdef int _move_or_resize(self, int least_load) except -1:
        """Move on to another array, or begin when the present one is full or has a lower load."""
        cdef KeyArena* unused = other_arena(&self.now_in, self.arenas)
        if self.is_moving:
            self._move_on(SLOTS_PER_MOVE)
        elif unused.block_count:
            release_block(unused)
        elif is_full(&self.now_in) or is_too_large(&self.now_in, least_load):
            self._resize()

    cdef int _resize(self) except -1:
        """Begin to move to an array that fits the entries."""
        cdef Slots fresh
        cdef KeyArena* arena = arena_of_next(&self.now_in, self.arenas)
        if not slots_open(&fresh, self.params.words, homes_needed(&self.now_in), arena):
            raise MemoryError
        self.moved_from, self.now_in = self.now_in, fresh
        self.is_moving = True
        self.bound = self.next_place = self.released = self.hand = 0

    cdef void _move_on(self, int steps) noexcept:
        """Move the next slots to the new array, except expired entries."""
        cdef Slots* old = &self.moved_from
        cdef Slots* new = &self.now_in
        cdef uint64_t* word
        cdef uint64_t place
        cdef uint32_t key
        while steps and self.next_place < old.size:
            steps -= 1
            word = slot(old, self.next_place)
            if word[0]:
                self.bound = word[0] + 1
                old.count -= 1
                if is_expired(&self.params, &self.instant, word + 1):
                    self._release(old, self.next_place)
                else:
                    place = seek(new, word[0], 0)
                    if not move_key(old, self.next_place, new, &key) or not shift_forward(new, place):
                        # No memory for more slots: drop the entry.
                        self._release(old, self.next_place)
                    else:
                        memcpy(slot(new, place), word, old.per_slot * sizeof(uint64_t))
                        if self.keeps_keys:
                            key_moved(old, self.next_place, new)
                            new.keys[place] = key
                word[0] = 0
            self.next_place += 1
        if self.next_place >= old.size:
            slots_close(old)
            slots_settle(new)
            self.is_moving = False
        elif self.next_place - self.released >= RELEASE_AFTER:
            release_slots(old, self.released, self.next_place)
            self.released = self.next_place

    cdef void _sweep(self, int steps) noexcept:
        """Remove expired entries from the slots at the clock hand."""
        cdef uint64_t* word
        while steps:
            steps -= 1
            if self.hand >= self.now_in.size:
                self.hand = 0
            word = slot(&self.now_in, self.hand)
            if word[0] and is_expired(&self.params, &self.instant, word + 1):
                self._remove(&self.now_in, self.hand)
            else:
                self.hand += 1

    cdef void _close(self, Slots* part) noexcept nogil:
        cdef uint64_t place
        for place in range(part.size):
            if self.params.kind == LOG and slot(part, place)[0]:
                free(<Ring*>slot(part, place)[1])
        slots_close(part)

    cdef void _release(self, Slots* part, uint64_t place) noexcept:
        """Release the memory that a slot refers to."""
        cdef Ring* ring
        if self.params.kind == LOG:
            ring = <Ring*>slot(part, place)[1]
            self.ring_bytes -= ring_bytes(ring, self.params.hit_bytes)
            free(ring)
        if self.keeps_keys:
            key_remove(part.arena, part.keys[place])

    cdef void _remove(self, Slots* part, uint64_t place) noexcept:
        self._release(part, place)
        shift_back(part, place)

    cdef int64_t _evict(self) noexcept:
        """Evict the lightest entry of a sample, or of a larger one if each is in use; return its weight."""
        cdef Slots* part = &self.now_in
        cdef uint64_t scanned, place, lightest = 0
        cdef int64_t weight, least = -1
        cdef int64_t full = self.params.capacity if self.params.kind == BUCKET else self.params.ceiling
        cdef int seen = 0
        if self.is_moving and (self.moved_from.count > SAMPLE or not self.now_in.count):
            part = &self.moved_from
            if self.hand < self.next_place:
                self.hand = self.next_place
        for scanned in range(part.size):
            if self.hand >= part.size:
                self.hand = 0
            place = self.hand
            self.hand += 1
            if slot(part, place)[0] == 0:
                continue
            weight = weight_of(&self.params, &self.instant, slot(part, place) + 1)
            if least < 0 or weight < least:
                least = weight
                lightest = place
            seen += 1
            if weight == 0 or seen >= LARGEST_SAMPLE or (seen >= SAMPLE and least <= full // 2):
                break
        if least >= 0:
            self._remove(part, lightest)
        return least
