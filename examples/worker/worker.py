"""Sends mail, one address per line of standard input, no faster than the cluster's rules allow.

What is over the limit is not lost and holds nothing else up: it goes to a queue of what waits,
where `acquire` lets it through when its turn has come. Any number of such workers share the limit.

    python worker.py --cluster ringfence://127.0.0.1:7101 < addresses.txt
"""

import argparse
import sys
import time

import trio

import ringfence

WAITING = 1000
"""Most jobs that wait for their turn; beyond it, no more are read from the input."""
MAX_WAIT = 30.0
"""Seconds that a job waits for its turn before it goes back to the end of the queue."""


async def send(address: str, how: str) -> None:
    """Where the real mail would be sent."""
    print(f"{time.time():.3f} {how} {address}", flush=True)


async def work(cluster: str | None) -> None:
    to_wait, waiting = trio.open_memory_channel[str](WAITING)
    async with ringfence.connect(cluster) as limiter, trio.open_nursery() as nursery:
        unfinished = 0
        is_read = False

        def close_when_done() -> None:
            if is_read and not unfinished:
                to_wait.close()

        async def finish_later() -> None:
            nonlocal unfinished
            async for address in waiting:
                host = address.rpartition("@")[2]
                if await limiter.acquire("jobs", {"mail": host}, max_wait=MAX_WAIT):
                    await send(address, "later")
                    unfinished -= 1
                    close_when_done()
                else:
                    await to_wait.send(address)

        for _ in range(10):  # Hosts that may be waited for at the same time.
            nursery.start_soon(finish_later)
        async for line in trio.wrap_file(sys.stdin):
            address = line.strip()
            host = address.rpartition("@")[2]
            if await limiter.check("jobs", {"mail": host}):
                await send(address, "now")
            else:
                unfinished += 1
                await to_wait.send(address)
        is_read = True
        close_when_done()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", help="its address; RINGFENCE_URL when absent")
    trio.run(work, parser.parse_args().cluster)
