"""SipHash-2-4 with 64 bits: a keyed hash, so that clients cannot choose keys that collide.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy


cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define ringfence_little(word) __builtin_bswap64(word)
    #else
    #define ringfence_little(word) (word)
    #endif
    """
    uint64_t ringfence_little(uint64_t word) nogil


cdef struct SipKey:
    uint64_t low
    uint64_t high


cdef inline uint64_t _rotated(uint64_t word, int by) noexcept nogil:
    return (word << by) | (word >> (64 - by))


cdef inline void _round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = _rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = _rotated(v[2], 32)


cdef inline SipKey sip_key(const unsigned char* secret) noexcept nogil:
    """Read a key of 16 bytes."""
    cdef SipKey key
    memcpy(&key.low, secret, 8)
    memcpy(&key.high, secret + 8, 8)
    key.low = ringfence_little(key.low)
    key.high = ringfence_little(key.high)
    return key


cdef inline uint64_t siphash(SipKey key, const unsigned char* text, size_t size) noexcept nogil:
    """Hash `size` bytes."""
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef size_t at = 0
    v[0] = key.low ^ <uint64_t>0x736F6D6570736575
    v[1] = key.high ^ <uint64_t>0x646F72616E646F6D
    v[2] = key.low ^ <uint64_t>0x6C7967656E657261
    v[3] = key.high ^ <uint64_t>0x7465646279746573
    while at + 8 <= size:
        memcpy(&word, text + at, 8)
        word = ringfence_little(word)
        v[3] ^= word
        _round(v)
        _round(v)
        v[0] ^= word
        at += 8
    word = <uint64_t>size << 56
    cdef int shift = 0
    while at < size:
        word |= <uint64_t>text[at] << shift
        shift += 8
        at += 1
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word
    v[2] ^= 0xFF
    _round(v)
    _round(v)
    _round(v)
    _round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]
