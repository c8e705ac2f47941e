"""Hash whose top bits are the shard of a key, for the compiled modules."""

from libc.stdint cimport uint32_t

cdef enum:
    SHARD_SHIFT = 18  # from the 32 bits of a hash to the 14 bits of a shard


cdef inline uint32_t rotated(uint32_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (32 - bits))


cdef inline uint32_t scrambled(uint32_t block) noexcept nogil:
    return rotated(block * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593


cdef inline uint32_t murmur3(const unsigned char* key, Py_ssize_t size) noexcept nogil:
    """Compute MurmurHash3 x86_32 with seed 0, as published by Austin Appleby."""
    cdef uint32_t state = 0, tail = 0
    cdef Py_ssize_t at
    for at in range(0, size - 3, 4):
        state ^= scrambled(
            key[at]
            | <uint32_t>key[at + 1] << 8
            | <uint32_t>key[at + 2] << 16
            | <uint32_t>key[at + 3] << 24
        )
        state = rotated(state, 13) * 5 + <uint32_t>0xE6546B64
    for at in range(size - 1, size - size % 4 - 1, -1):
        tail = tail << 8 | key[at]
    state ^= scrambled(tail)  # 0 when no bytes are left.
    state ^= <uint32_t>size
    state = (state ^ state >> 16) * <uint32_t>0x85EBCA6B
    state = (state ^ state >> 13) * <uint32_t>0xC2B2AE35
    return state ^ state >> 16
