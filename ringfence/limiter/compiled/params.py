"""Conversion of limits and counters between Python objects and the numbers of compiled tables.

Decides which limits have a compiled form. Rare operations use the Python implementation: a counter
is read from its slot, changed, and written back.
"""

from array import array
from typing import TypeAlias

from ringfence.limiter.limit import NS_PER_SECOND
from ringfence.limiter.reference import Counter, Scheme
from ringfence.limiter.reference.bucket import Bucket, BucketScheme
from ringfence.limiter.reference.fixed_window import FixedWindow, FixedWindowScheme
from ringfence.limiter.reference.shared import SharedBucket, SharedBucketScheme, SharedWindow
from ringfence.limiter.reference.sliding_log import SlidingLog, SlidingLogScheme
from ringfence.limiter.reference.sliding_window import SlidingWindow, SlidingWindowScheme

__all__ = ["Numbers", "Params", "counter_of", "numbers_of", "params_of"]

Params: TypeAlias = dict[str, int]
"""Parameters of a scheme by name, for `Store`."""
Numbers: TypeAlias = tuple[int, ...] | tuple["array[int]", "array[int]"]
"""Numbers of a counter, for `Store.put`; those of a log are the arrays of its stamps and counts."""

_BUCKET, _FIXED, _SLIDING, _LOG = range(4)
_LATEST = 2**62
"""Latest instant with a compiled form, in the year 2116."""
_MAX_TICKS = 2**61
_MAX_TICKS_PER_NS = 2**20
_MAX_HITS = 2**31
_SHARED = frozenset([SharedWindow, SharedBucket])


def params_of(scheme: Scheme) -> Params | None:
    """Return the numbers that define a limit in compiled code; None when only Python code
    supports it."""
    match scheme:
        case SharedBucketScheme():
            return None
        case BucketScheme():
            return _bucket_params(scheme)
        case FixedWindowScheme():
            period_ns = 0 if scheme.limit.calendar is not None else scheme.limit.period_ns
            return _window_params(_FIXED, scheme, period_ns)
        case SlidingWindowScheme() if scheme.slots == 1:
            return _window_params(_SLIDING, scheme, scheme.slot_ns)
        case SlidingLogScheme() if scheme.ceiling < _MAX_HITS:
            return _log_params(scheme)
        case _:
            return None


def numbers_of(counter: Counter) -> Numbers | None:
    """Return the numbers that represent a counter in compiled code; None when only Python code
    supports it."""
    if type(counter) in _SHARED:  # Faster than a pattern, since most of these are of other types.
        return None
    match counter:
        case Bucket():
            return (counter.tat,)
        case FixedWindow():
            return counter.scheme.number(counter.start), counter.count
        case SlidingWindow():
            return counter.slot, *counter.counts
        case SlidingLog():
            first = counter.first
            return counter.stamps[first:], counter.counts[first:]
        case _:
            return None


def counter_of(scheme: Scheme, numbers: Numbers) -> Counter:
    """Create a counter as a Python object from the numbers that `numbers_of` returned."""
    match scheme, numbers:
        case BucketScheme(), (int(tat),):
            return Bucket(scheme, tat)
        case FixedWindowScheme(), (int(number), int(count)):
            return FixedWindow(scheme, *scheme.window(scheme.start_of(number)), count)
        case SlidingWindowScheme(), (int(slot), int(current), int(oldest)):
            return SlidingWindow(scheme, slot, (current, oldest))
        case SlidingLogScheme(), (array() as stamps, array() as counts):
            return SlidingLog(scheme, stamps, counts)
        case _:
            raise AssertionError(f"{numbers} are no counter under {scheme.limit}")


def _bucket_params(scheme: BucketScheme) -> Params | None:
    if scheme.capacity >= _MAX_TICKS or scheme.ticks_per_ns > _MAX_TICKS_PER_NS:
        return None
    return {
        "kind": _BUCKET,
        "ceiling": scheme.ceiling,
        "hard": scheme.hard,
        "unit": scheme.unit,
        "ticks_per_ns": scheme.ticks_per_ns,
        "capacity": scheme.capacity,
        "hard_capacity": scheme.hard_capacity,
        "is_queue": scheme.is_queue,
    }


def _window_params(kind: int, scheme: Scheme, period_ns: int) -> Params | None:
    """Divide a 64-bit word into one part for the window number and one for its count."""
    unit_ns = period_ns or NS_PER_SECOND
    count_bits = 64 - (_LATEST // unit_ns + 1).bit_length()
    if scheme.ceiling >> count_bits:
        return None
    return {
        "kind": kind,
        "ceiling": scheme.ceiling,
        "hard": scheme.hard,
        "period_ns": period_ns,
        "count_bits": count_bits,
    }


def _log_params(scheme: SlidingLogScheme) -> Params:
    """Choose the bytes per entry of a sliding log so that most time gaps of a full log fit."""
    usual_gap_ns = 4 * scheme.period_ns // max(scheme.ceiling, 1)
    return {
        "kind": _LOG,
        "ceiling": scheme.ceiling,
        "hard": scheme.hard,
        "period_ns": scheme.period_ns,
        "hit_bytes": min(max((usual_gap_ns.bit_length() + 7) // 8, 2), 8),
    }
