"""Fuzz target: mutated frames against the server's end of an HTTP/2 connection, without a socket.

No bytes may raise an error. No read may take 50 ms of processor time. Each connection must stay
within its bound of memory. `python -m tests.fuzz.http2_frames --frames 10000000 --seed 1`.
"""

import argparse
import gc
import resource
import struct
import sys
import time
from random import Random

from hpack import Encoder

from ringfence.gateway.grpc.http2 import Http2, Request
from ringfence.gateway.grpc.http2_sender import STATUS_200, field, frame

__all__ = ["run"]

MAX_BODY = 65_541
LONGEST_READ = 0.05
"""Seconds of processor time for one read."""
MAX_KEPT = 1_900_000
"""Bytes that one connection may occupy in the server: see docs/guides/gateway.md, "Bounds"."""
LARGEST_READ = 262_144
"""Bytes that asyncio or uvloop deliver in one read."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = STATUS_200 + field(b"content-type", b"application/grpc")
TRAILER = field(b"grpc-status", b"0")
BASE = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), ("te", "trailers")]
EXTRA = [
    ("content-type", "application/grpc"),
    ("content-length", "5"),
    ("grpc-timeout", "20m"),
    ("authorization", "v" * 900),
    ("authorization", "w" * 3500),
    ("x-small", "1"),
    ("x-large", "v" * 5000),
    ("Upper", "case"),
    (":path", "/again"),
    ("connection", "close"),
]
NUMBERS = (0, 1, 2, 9, 100, 16_383, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1)


class _Caller:
    """Generator of frames for one connection. Most of the frames are valid."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._encoder = Encoder()
        self._last = -1
        self._open: list[int] = []
        """Streams whose requests have not ended."""
        # Histories differ in their kinds of frames: some only open calls, some never open calls.
        self._kinds = random.choices(range(12), k=random.randrange(1, 12))

    def frame(self) -> bytes:
        """Return one frame, which may be damaged."""
        random = self._random
        generated = self._generate(random.choice(self._kinds))
        if random.getrandbits(6):
            return generated
        match random.getrandbits(2):
            case 0:  # A wrong byte somewhere, most often in the frame's header.
                at = random.randrange(min(len(generated), 30))
                return generated[:at] + bytes([random.getrandbits(8)]) + generated[at + 1 :]
            case 1:  # A byte too few or too many.
                return generated[:-1] if random.getrandbits(1) else generated + b"\0"
            case 2:
                return random.randbytes(random.randrange(40))
            case _:  # Other flags.
                return generated[:4] + bytes([random.getrandbits(8)]) + generated[5:]

    def _generate(self, kind: int) -> bytes:
        random = self._random
        if self._last < 0:
            kind = 0
        stream = max(1, self._last - 2 * (random.getrandbits(8) & random.getrandbits(8)))
        match kind:
            case 0 | 1 | 2:
                self._last += 2
                block = self._block()
                flags = 4 | (random.getrandbits(2) == 0)
                if flags == 4:
                    self._open.append(self._last)
                if random.getrandbits(5):
                    return frame(1, flags, self._last, block[:16_384])
                cut = random.randrange(len(block) + 1)
                started = frame(1, flags & 1, self._last, block[:cut])
                return started + frame(9, 4, self._last, block[cut:][:16_384])
            case 3 | 4:
                size = random.choice((0, 1, 5, 5, 5, 300, 300, 16_384))
                has_ended = random.getrandbits(1)
                if self._open and random.getrandbits(5):
                    stream = self._open.pop() if has_ended else self._open[-1]
                return frame(0, has_ended, stream, bytes(size))
            case 5:
                return frame(8, 0, stream * random.getrandbits(1), self._number())
            case 6:
                window = struct.pack(">HI", 4, random.choice(NUMBERS[:9]))
                other = struct.pack(">HI", random.randrange(8), random.choice(NUMBERS))
                values = random.choice((b"", window, 50 * window, window, other))
                return frame(4, random.getrandbits(4) == 0, 0, values)
            case 7:
                return frame(3, 0, stream, bytes(4))
            case 8:
                return frame(6, random.getrandbits(1), 0, bytes(8))
            case 9:
                return frame(2, 0, stream, struct.pack(">IB", stream + 2, 16))
            case 10:
                return frame(random.choice((7, 10, 200)), random.getrandbits(8), 0, self._number())
            case _:  # A complete call, which gives credit for other frames.
                self._last += 2
                head = frame(1, 4, self._last, self._encoder.encode(BASE))
                return head + frame(0, 1, self._last, bytes(5))

    def _block(self) -> bytes:
        random = self._random
        if not random.getrandbits(8):  # Many small fields: the most work per byte.
            return random.choice((b"\x20", b"\x82", b"\x00\x01a\x00", b"\x40\x00\x00")) * 4096
        extra = EXTRA[:5] if random.getrandbits(4) else EXTRA
        fields = [*BASE, *random.choices(extra, k=random.getrandbits(2))]
        return self._encoder.encode(fields, huffman=not random.getrandbits(5))

    def _number(self) -> bytes:
        return struct.pack(">I", self._random.choice(NUMBERS))


def run(random: Random) -> int:
    """Run the history of one connection; return the number of frames."""
    now, frames = 0.0, 0
    server, caller = Http2(MAX_BODY, now), _Caller(random)
    sent, pending_streams = PREFACE, list[int]()
    for _ in range(random.choice((10, 100, 1000))):
        generated = [caller.frame() for _ in range(random.choice((1, 1, 5, 100)))]
        frames += len(generated)
        sent += b"".join(generated)
        cut = random.randrange(len(sent)) if random.getrandbits(1) else len(sent)
        now += random.choice((0.0, 0.001, 0.2))
        for at in range(0, cut, LARGEST_READ):
            _read(server, sent[at : min(cut, at + LARGEST_READ)], now, pending_streams)
        sent = sent[cut:]
        if random.getrandbits(1):
            _answer(server, random, pending_streams)
        if not random.getrandbits(5):
            server.give_up_before(now - 5.0)
        if not random.getrandbits(8):
            server.drain()
        server.out.take()
        if server.is_broken:
            assert server.kept <= MAX_KEPT
            break
    return frames


def _read(server: Http2, sent: bytes, now: float, pending_streams: list[int]) -> None:
    """Let the server read in as many turns as necessary; check each turn."""
    while True:
        started = time.thread_time()
        events = server.receive(sent, now)
        elapsed = time.thread_time() - started
        assert elapsed < LONGEST_READ, f"{elapsed:.3f} s for one read"
        assert server.kept <= MAX_KEPT, f"{server.kept} bytes kept"
        assert len(server.out.open) <= 1000
        assert len(server.out.dropped) <= 1024
        pending_streams += [each.stream for each in events if isinstance(each, Request)]
        sent = b""
        if not server.has_more:
            return


def _answer(server: Http2, random: Random, pending_streams: list[int]) -> None:
    """Answer some of the calls."""
    while pending_streams and random.getrandbits(3):
        stream = pending_streams.pop(random.randrange(len(pending_streams)))
        match random.getrandbits(3):
            case 0:
                server.out.end(stream, HEADER + TRAILER)
            case 1:
                server.out.send_message(stream, HEADER, bytes(7))
            case _:
                size = random.choice((7, 7, 300, 20_000))
                server.out.answer(stream, HEADER, bytes(size), TRAILER)


def main(arguments: list[str]) -> int:
    """Fuzz for a number of frames."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.http2_frames")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    gc.freeze()  # Reads must not include a garbage collection of imported objects.
    frames = histories = 0
    while frames < options.frames:
        try:
            frames += run(Random(f"{options.seed}:{histories}"))
        except BaseException:
            sys.stderr.write(f"history {histories} of seed {options.seed}\n")
            raise
        histories += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.write(
        f"{frames} frames on {histories} connections: no errors; peak memory {peak} MiB\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
