"""Rates of a measured function, by wall-clock time and by processor time."""

import subprocess
import sys
import time

from benchmarks.reporting.rates import paced_by


def spin(seconds: float) -> None:
    started = time.process_time()
    while time.process_time() < started + seconds:
        pass


def test_waiting_reduces_the_rate_by_wall_time_and_not_by_processor_time() -> None:
    def work() -> int:
        spin(0.02)
        time.sleep(0.2)  # A real sleep, because the test compares real times: ten times the work.
        return 100

    pace = paced_by(work)

    assert pace.per_s < 500
    assert pace.per_core_s > 2 * pace.per_s


def test_the_processor_time_of_a_server_is_included() -> None:
    program = "import sys, time\nfor line in sys.stdin:\n b=time.process_time()\n"
    program += " while time.process_time() < b + 0.3: pass\n print(flush=True)"
    server = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def work() -> int:
            stdin.write("go\n")
            stdout.readline()
            return 100

        pace = paced_by(work, server.pid)

    assert 100 / 0.6 < pace.per_core_s < 100 / 0.25
