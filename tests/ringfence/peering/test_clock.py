import time

from ringfence.peering.clock import SystemClock


def test_the_clock_starts_from_the_wall_clock():
    assert abs(SystemClock().now() - time.time_ns()) < 1_000_000_000


def test_the_clock_never_goes_back():
    clock = SystemClock()
    readings = [clock.now() for _ in range(1000)]

    assert readings == sorted(readings)
