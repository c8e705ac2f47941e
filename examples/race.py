"""Two clients check the last unit of a limit concurrently, many times: exactly one may get it.

Start the three nodes of the README, then:  python examples/race.py [ROUNDS]
The clients first connect to different nodes. Each race has its own key.
"""

import secrets
import sys

import trio

import ringfence

LEFT, RIGHT = "ringfence://127.0.0.1:7101", "ringfence://127.0.0.1:7102,127.0.0.1:7103"
AT_ONCE = 100


async def main(rounds: int) -> None:
    run = secrets.token_hex(4)
    won = [0, 0]
    wrong = 0
    async with (
        ringfence.connect(LEFT, raise_on_outage=True) as left,
        ringfence.connect(RIGHT, raise_on_outage=True) as right,
    ):

        async def race(number: int) -> None:
            nonlocal wrong
            key = f"race-{run}-{number}"
            winners = []

            async def take(side: int, limiter: ringfence.Limiter) -> None:
                if await limiter.check_limit("1/day", key):
                    winners.append(side)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, 0, left)
                nursery.start_soon(take, 1, right)
            if len(winners) == 1:
                won[winners[0]] += 1
            else:
                wrong += 1

        for first in range(0, rounds, AT_ONCE):
            async with trio.open_nursery() as nursery:
                for number in range(first, min(first + AT_ONCE, rounds)):
                    nursery.start_soon(race, number)
    print(f"{rounds} races: left won {won[0]}, right won {won[1]}, wrong {wrong}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
