"""Send mail to the addresses on standard input, within the limits of `rules.yaml`.

Mail that is over the limit is not lost. Each receiving host has its own queue and task, so a host
that waits for its limit does not delay the others. Any number of such workers share the limit.

    python worker.py --cluster ringfence://127.0.0.1:7101 < addresses.txt
"""

import argparse
import sys
import time
from collections import deque
from pathlib import Path

import trio

import ringfence

RULES = Path(__file__).with_name("rules.yaml")
MAX_QUEUED = 1000
"""Most mails in all queues together. While the queues are full, the worker reads no input."""
MAX_WAIT = 30.0
"""Longest time in seconds of one call of `acquire`. The mail stays in its queue after a denial."""


async def send(address: str, how: str) -> None:
    """Print the address; a real worker sends the mail here."""
    print(f"{time.time():.3f} {how} {address}", flush=True)


async def work(cluster: str | None) -> None:
    queues: dict[str, deque[str]] = {}
    room = trio.Semaphore(MAX_QUEUED)

    async def send_all(host: str) -> None:
        queue = queues[host]
        while queue:
            how = "now"
            decision = await limiter.check("jobs", {"mail": host})
            while not decision:
                how = "later"
                decision = await limiter.acquire("jobs", {"mail": host}, max_wait=MAX_WAIT)
            await send(queue.popleft(), how)
            room.release()
        del queues[host]

    # The client has its own copy of the rules. So `on_failure` also applies before a node answers.
    async with (
        ringfence.connect(cluster, rules=RULES) as limiter,
        trio.open_nursery() as nursery,
    ):
        async for line in trio.wrap_file(sys.stdin):
            address = line.strip()
            host = address.rpartition("@")[2]
            await room.acquire()
            if host in queues:
                queues[host].append(address)
            else:
                queues[host] = deque([address])
                nursery.start_soon(send_all, host)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", help="address of the cluster; default: RINGFENCE_URL")
    trio.run(work, parser.parse_args().cluster)
